"""The plain PyTorch loop that split training is compared with, bit for bit: one process, one module, torch's own optimizer.

It shares with the product what defines the experiment (first weights, order of samples, seeds of dropout, learning rate
of a step) and nothing of how the product computes it.
"""

import torch
from torch import Tensor, nn

from edge_agent import EdgeConfig
from edge_agent.data import BatchLoader, evaluation_batches
from edge_agent.data.named import load_dataset
from shared.model.build import build_model
from shared.model.chain import build_chain
from shared.model.random_state import random_state
from shared.model.recipe import OptimizerConfig, Recipe
from shared.model.schedule import learning_rate


def plain_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """One optimizer over the whole module, as a user writes it."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    eps = {} if config.eps is None else {"eps": config.eps}
    rate, decay = config.learning_rate, config.weight_decay
    if config.name == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=config.momentum, nesterov=config.nesterov, weight_decay=decay)
    if config.name == "rmsprop":
        return torch.optim.RMSprop(
            parameters, rate, alpha=config.alpha, momentum=config.momentum, weight_decay=decay, **eps
        )
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.name]
    return kind(parameters, rate, betas=config.betas, weight_decay=decay, **eps)


def plain_state(config: EdgeConfig) -> dict[str, Tensor]:
    """The state dict after all steps of `config`, trained here and now."""
    data, training = config.data, config.training
    dataset = load_dataset(data.train.factory, data.train.kwargs)
    loader = BatchLoader(dataset, data.batch_size, training.seed, data.drop_last, workers=0)
    total = training.epochs * loader.steps_per_epoch
    recipe = Recipe(
        optimizer=training.optimizer,
        schedule=training.schedule,
        loss=training.loss,
        seed=training.seed,
        steps_per_epoch=loader.steps_per_epoch,
        total_steps=total,
    )
    module = build_model(config.model.factory, config.model.kwargs, training.seed).train()
    example = next(evaluation_batches(dataset, data.batch_size)).inputs
    blocks = build_chain(module, example).blocks
    optimizer = plain_optimizer(module, training.optimizer)
    random = any(block.draws_random for block in blocks)
    for batch in loader.iterate(0, min(total, training.max_steps or total)):
        optimizer.param_groups[0]["lr"] = learning_rate(recipe, batch.step)
        if random:
            output = batch.inputs
            for block in blocks:
                with random_state(training.seed, batch.step, block.index):
                    output = block.module(output)
        else:
            output = module(batch.inputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(output, batch.labels).backward()
        if training.optimizer.clip_norm is not None:
            for block in blocks:
                torch.nn.utils.clip_grad_norm_(block.named_parameters().values(), training.optimizer.clip_norm)
        optimizer.step()
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_same_bits(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> None:
    """Every parameter and buffer is there and equal, bit for bit."""
    assert expected.keys() == actual.keys()
    different = [name for name in expected if not torch.equal(expected[name], actual[name])]
    assert not different, f"differ: {different}"
