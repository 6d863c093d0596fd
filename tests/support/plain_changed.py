"""The plain loop of a cut where both sides keep each sample's last feature, and go on from what a codec makes of a change."""

from collections.abc import Mapping

import torch
from torch import Tensor

from edge_agent.data import BatchLoader, TensorDataset
from isthmus import EdgeConfig
from shared.codec import FeedbackMode, codec_by_name, compensate, compression_error
from tests.support.plain import plain_experiment, plain_forward, plain_loss, plain_optimizer, plain_update


def plain_changed(config: EdgeConfig, cuts: Mapping[int, int]) -> dict[str, Tensor]:
    """The state dict after all steps of `config`, of which the gradients come at once.

    cuts: the cut from a step on, at which all features are forgotten.
    """
    chain, recipe, dataset, loader, steps = plain_experiment(config)
    data, deployment = config.data, config.deployment
    numbers = TensorDataset(torch.zeros(len(dataset), 1), torch.arange(len(dataset)))
    orders = BatchLoader(numbers, data.batch_size, config.training.seed, data.drop_last, 0)
    assert deployment.changes is not None
    assert isinstance(deployment.downlink_codec, str)
    names = (deployment.first_codec, deployment.changes, deployment.downlink_codec)
    whole, change, down = map(codec_by_name, names)
    modules = [block.module for block in chain.blocks]
    optimizer = plain_optimizer(chain.module, recipe.optimizer)
    clipped = [list(block.named_parameters().values()) for block in chain.blocks]
    accumulate, kept, cut = recipe.accumulate_batches, dict[int, Tensor](), 0

    def received(number: int, feature: Tensor) -> Tensor:
        if number not in kept:
            kept[number] = whole.decode(whole.encode(feature)).clone()
        elif not (difference := feature - kept[number]).norm() <= deployment.changes_above * feature.norm():
            kept[number] = kept[number] + change.decode(change.encode(difference))
        return kept[number]

    for batch, order in zip(loader.iterate(0, steps), orders.iterate(0, steps), strict=True):
        if batch.step in cuts:
            cut = cuts[batch.step]
            kept.clear()
        feature = plain_forward(modules[:cut], recipe.seed, batch.step, batch.inputs)
        assert isinstance(feature, Tensor)
        samples = feature.detach().contiguous().split(1)
        arrived = torch.cat([received(*one) for one in zip(order.labels.tolist(), samples, strict=True)])
        arrived.requires_grad_()
        output = plain_forward(modules[cut:], recipe.seed, batch.step, arrived, first=cut)
        (plain_loss(recipe.loss, output, batch.labels) / accumulate).backward()
        if feature.requires_grad:
            gradient = down.decode(down.encode(arrived.grad))
            error, mode = compression_error(arrived.detach(), feature), FeedbackMode(deployment.feedback)
            feature.backward(compensate(gradient, error, len(feature) * accumulate, mode))
        plain_update(clipped, optimizer, recipe, batch.step)
    return {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}
