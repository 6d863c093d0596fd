"""The plain loop that computes the feature of each sample once, and goes on from what a codec made of it by itself."""

from collections.abc import Mapping

import torch
from torch import Tensor

from edge_agent.data import BatchLoader, TensorDataset
from isthmus import EdgeConfig
from shared.codec import codec_by_name
from tests.support.plain import plain_experiment, plain_forward, plain_loss, plain_optimizer, plain_update


def plain_recalled(config: EdgeConfig, cuts: Mapping[int, int]) -> dict[str, Tensor]:
    """The state dict after all steps of `config`.

    cuts: the cut from a step on, at which all features are forgotten.
    """
    chain, recipe, dataset, _, steps = plain_experiment(config)
    data, codec = config.data, codec_by_name(config.deployment.first_codec)
    numbers = TensorDataset(torch.zeros(len(dataset), 1), torch.arange(len(dataset)))
    orders = BatchLoader(numbers, data.batch_size, config.training.seed, data.drop_last, 0)
    modules = [block.module for block in chain.blocks]
    optimizer = plain_optimizer(chain.module, recipe.optimizer)
    clipped = [list(block.named_parameters().values()) for block in chain.blocks]
    kept: dict[int, Tensor] = {}
    cut = 0
    for batch in orders.iterate(0, steps):
        if batch.step in cuts:
            kept, cut = {}, cuts[batch.step]
        wanted = batch.labels.tolist()
        if lacking := [number for number in wanted if number not in kept]:
            with torch.no_grad():
                made = plain_forward(modules[:cut], recipe.seed, 0, torch.stack([dataset[one][0] for one in lacking]))
            kept |= zip(lacking, (codec.decode(codec.encode(one)) for one in made.split(1)), strict=True)
        features, labels = torch.cat([kept[one] for one in wanted]), torch.tensor([dataset[one][1] for one in wanted])
        output = plain_forward(modules[cut:], recipe.seed, batch.step, features, first=cut)
        (plain_loss(recipe.loss, output, labels) / recipe.accumulate_batches).backward()
        plain_update(clipped, optimizer, recipe, batch.step)
    return {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}
