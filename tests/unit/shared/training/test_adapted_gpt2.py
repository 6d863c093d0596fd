"""Adapters on GPT-2: what its blocks weigh when they move, and when they are stored."""

import pytest
import torch

from shared.model.build import choose_output
from shared.model.chain import build_chain
from shared.training import state_file
from shared.training.held_blocks import HeldBlocks
from shared.training.policies import policy_of_stage
from shared.training.recipe import OptimizerConfig, Recipe, ScheduleConfig
from shared.training.stage import Stage
from tests.support.models.users import libraries

pytestmark = [pytest.mark.slow, pytest.mark.zoo]
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-3)
RECIPE = Recipe(
    optimizer=ADAMW, schedule=ScheduleConfig(), loss="token_cross_entropy", seed=3, steps_per_epoch=1, total_steps=1
)


@pytest.mark.full
def test_blocks_of_124_million_weights_weigh_what_their_adapters_and_moments_do():
    module = libraries.adapted_gpt2(12, 768, 50257, 12, rank=8)
    choose_output(module, "logits")
    tokens = torch.randint(50257, (2, 8))
    chain = build_chain(module, {"input_ids": tokens})
    learning = {name for name, value in module.named_parameters() if value.requires_grad}
    before = {name: value.clone() for name, value in module.state_dict().items()}
    blocks = range(len(chain.blocks))
    assert len(blocks) == 15, "the tables of tokens and places, twelve layers, and the head"
    held = HeldBlocks(chain, RECIPE, torch.device("cpu"), blocks)
    policy = policy_of_stage("replay", 0, ends_model=False)(Stage(held, 0, len(blocks)), input_gradient=False)
    (scores,) = policy.forward(0, (tokens,))
    policy.backward(0, (torch.ones_like(scores),))
    held.update(blocks, 0)
    after = module.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert {name for name in learning if "lora_B" in name} <= changed <= learning, "the bases are as they were"

    def sent(moved: range) -> int:
        return sum(len(state_file.serialize(held.block_tensors(block))) for block in moved)

    def own(moved: range) -> int:
        """Bytes of what learns, and of two moments of each."""
        named = [chain.blocks[block].named_parameters().items() for block in moved]
        return 3 * sum(value.nbytes for block in named for name, value in block if name in learning)

    six = range(5, 11)
    assert own(six) == 6 * 3 * 8 * (768 + 3 * 768) * 4
    assert sent(six) <= 1.05 * own(six)
    assert sent(blocks) <= own(blocks) + 64 * 1024
