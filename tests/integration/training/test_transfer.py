"""Transfer learning (paper 000, type 2): where nothing on the edge learns, nothing comes down and nothing waits for K."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_trainer import TrainerServer
from edge_agent.observability.observer import RunObserver
from shared.training.policies import POLICIES
from tests.support.plain import assert_same_bits, plain_forward, plain_optimizer, plain_state, plain_update
from tests.support.running import edge_config, running_trainer, train_with
from tests.support.virtual import run_virtually
from tests.support.virtual_split import (
    RECIPE,
    SEED,
    Delays,
    Record,
    VirtualSplit,
    any_delays,
    batch_of,
    small_network,
)

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 25
FLAGS = [
    "model.kwargs={width=8, blocks=2, dropout=0.2}",
    'training.optimizer={name="adamw", learning_rate=0.003, clip_norm=1.0}',
    f"training.max_steps={STEPS}",
    "deployment.cut=2",
]
ALL_OF_THE_EDGE = 'model.frozen=["stem", "layers.0"]'


@pytest.fixture
def applied(monkeypatch) -> list[int]:
    """The steps whose gradient the edge has applied."""
    steps: list[int] = []
    monkeypatch.setattr(RunObserver, "gradient_applied", lambda _self, step, _staleness: steps.append(step))
    return steps


def sent_down(server: TrainerServer) -> float:
    return server.metrics.registry.get_sample_value("isthmus_payload_bytes_total", {"direction": "down"})


@pytest.mark.parametrize("limit", [0, 5])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_frozen_edge_gets_no_gradient_and_learns_as_one_process_would(policy, limit, applied):
    flags = [*FLAGS, ALL_OF_THE_EDGE, f'deployment.backward="{policy}"', f"deployment.staleness={limit}"]
    async with running_trainer() as server:
        result = await train_with(server, *flags)
        assert sent_down(server) == result.summary.bytes_down == 0
    assert result.summary.steps == STEPS
    assert not applied
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())


@pytest.mark.parametrize(
    ("cut", "frozen"),
    [
        (2, ["stem"]),
        (2, ["layers.0"]),
        (2, ["layers.0.first", "classifier"]),
        (3, ["classifier"]),
        (4, ["stem", "layers.1"]),
        (4, ["stem", "layers"]),
    ],
)
async def test_an_edge_of_which_a_part_is_frozen_gets_every_gradient(cut, frozen, applied):
    flags = [*FLAGS, f"deployment.cut={cut}", f"model.frozen={frozen}".replace("'", '"')]
    async with running_trainer() as server:
        result = await train_with(server, *flags)
        assert sent_down(server) == result.summary.bytes_down > 0
    assert applied == list(range(STEPS))
    assert_same_bits(plain_state(edge_config(*flags)), result.module.state_dict())


async def test_what_is_frozen_stays_and_the_rest_does_not():
    """Otherwise both sides of the comparisons above might have forgotten to freeze."""
    flags = [*FLAGS, ALL_OF_THE_EDGE]
    before = plain_state(edge_config(*flags, "training.max_steps=1"))
    after = plain_state(edge_config(*flags))
    same = {name for name in before if torch.equal(before[name], after[name])}
    parameters = {name for name in before if "running" not in name and "num_batches" not in name}
    assert same & parameters == {name for name in parameters if name.startswith(("stem.", "layers.0."))}
    assert not same & {"stem.1.running_mean", "layers.0.first.1.num_batches_tracked"}, "statistics go on"


@pytest.mark.parametrize("limit", [0, 2])
@pytest.mark.parametrize("frozen_blocks", [1, 2])
def test_a_frozen_edge_runs_ahead_of_k_and_another_does_not(limit, frozen_blocks):
    async def main() -> Record:
        slow = Delays(cloud=lambda: 0.5, up=lambda: 0.3)
        split = VirtualSplit(frozen_blocks=frozen_blocks, delays=slow, deployment={"staleness": limit})
        await split.train([15, 30])
        return split.record

    record, all_frozen = run_virtually(main), frozen_blocks == 2
    assert (record.most_in_flight > limit + 1) == all_frozen
    assert [step for what, step in record.edge if what == "forward"] == list(range(30))
    assert bool(record.gradients_down) == ("backward" in dict(record.edge)) == (not all_frozen)
    assert (record.most_inputs_kept > 0) == (limit > 0 and not all_frozen), "what never learns keeps nothing to replay"
    assert record.cloud == record.updated == record.reported == list(range(30))


@settings(max_examples=30, deadline=None)
@given(any_delays(), st.lists(st.integers(1, 12), min_size=1, max_size=2))
def test_a_frozen_edge_far_ahead_is_still_exact(delays, runs):
    stops = [sum(runs[: index + 1]) for index in range(len(runs))]

    async def main() -> dict[str, torch.Tensor]:
        split = VirtualSplit(frozen_blocks=2, delays=delays)
        await split.train(stops)
        return split.state

    module = small_network(frozen_blocks=2).train()
    optimizer = plain_optimizer(module, RECIPE.optimizer)
    for step in range(stops[-1]):
        batch = batch_of(step)
        output = plain_forward(module, SEED, step, batch.inputs)
        torch.nn.functional.cross_entropy(output, batch.labels).backward()
        plain_update([block.parameters() for block in module], optimizer, RECIPE, step)
    assert_same_bits(module.state_dict(), run_virtually(main))
