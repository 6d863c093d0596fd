"""The plain loop of a cut where both sides keep each sample's last feature, and go on from what a codec makes of a change."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from edge_agent.data import BatchLoader, TensorDataset
from isthmus import EdgeConfig
from shared.codec import FeedbackMode, codec_by_name, compensate, compression_error
from shared.placement import Deployment
from tests.support.plain import plain_experiment, plain_forward, plain_loss, plain_optimizer, plain_update
from tests.support.plain_late import plain_split


class PlainReceiver:
    """The features that both sides keep, and what is received of the next ones."""

    def __init__(self, config: EdgeConfig) -> None:
        deployment = config.deployment
        assert deployment.changes is not None
        self._whole, self._change = map(codec_by_name, (deployment.first_codec, deployment.changes))
        self._above = deployment.changes_above
        self.kept: dict[int, Tensor] = {}

    def received(self, numbers: Tensor, features: Tensor) -> Tensor:
        """Return the features of these samples as they arrive."""
        samples = features.detach().contiguous().split(1)
        return torch.cat([self._one(*each) for each in zip(numbers.tolist(), samples, strict=True)])

    def _one(self, number: int, feature: Tensor) -> Tensor:
        kept = self.kept
        if number not in kept or not (moved := _norm(difference := feature - kept[number])).isfinite():
            kept[number] = self._whole.decode(self._whole.encode(feature)).clone()
        elif not (moved <= self._above * _norm(feature) and _norm(feature).isfinite()):
            kept[number] = kept[number] + self._change.decode(self._change.encode(difference))
        return kept[number]


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.double() if tensor.dtype is torch.float64 else tensor.float())


def plain_orders(config: EdgeConfig, samples: int) -> BatchLoader:
    """The batches of a run, of which the labels are the numbers of their samples."""
    numbers, data = TensorDataset(torch.zeros(samples, 1), torch.arange(samples)), config.data
    return BatchLoader(numbers, data.batch_size, config.training.seed, data.drop_last, 0)


def plain_changed_late(config: EdgeConfig, order: Iterable[tuple[str, int]]) -> dict[str, Tensor]:
    """The state dict after all steps of `config`, of which the gradients come late, in this order of the device's work."""
    chain, recipe, dataset, loader, steps = plain_experiment(config)
    deployment, receiver = config.deployment, PlainReceiver(config)
    assert isinstance(deployment.downlink_codec, str)
    assert deployment.cut is not None
    how = Deployment(0, deployment.cut, deployment.first_staleness, deployment.first_codec, deployment.downlink_codec)
    numbers = [batch.labels for batch in plain_orders(config, len(dataset)).iterate(0, steps)]
    batches = [(batch.inputs, batch.labels) for batch in loader.iterate(0, steps)]
    plain_split(
        [block.module for block in chain.blocks],
        deployment.cut,
        recipe,
        deployment.backward,
        FeedbackMode(deployment.feedback),
        order,
        lambda _: how,
        batches.__getitem__,
        lambda step, feature: receiver.received(numbers[step], feature),
    )
    return {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}


def plain_changed(config: EdgeConfig, cuts: Mapping[int, int]) -> dict[str, Tensor]:
    """The state dict after all steps of `config`, of which the gradients come at once.

    cuts: the cut from a step on, at which all features are forgotten.
    """
    chain, recipe, dataset, loader, steps = plain_experiment(config)
    deployment, receiver = config.deployment, PlainReceiver(config)
    orders = plain_orders(config, len(dataset))
    assert isinstance(deployment.downlink_codec, str)
    down = codec_by_name(deployment.downlink_codec)
    modules = [block.module for block in chain.blocks]
    optimizer = plain_optimizer(chain.module, recipe.optimizer)
    clipped = [list(block.named_parameters().values()) for block in chain.blocks]
    accumulate, cut = recipe.accumulate_batches, 0
    for batch, order in zip(loader.iterate(0, steps), orders.iterate(0, steps), strict=True):
        if batch.step in cuts:
            cut = cuts[batch.step]
            receiver.kept.clear()
        feature = plain_forward(modules[:cut], recipe.seed, batch.step, batch.inputs)
        assert isinstance(feature, Tensor)
        arrived = receiver.received(order.labels, feature).requires_grad_()
        output = plain_forward(modules[cut:], recipe.seed, batch.step, arrived, first=cut)
        (plain_loss(recipe.loss, output, batch.labels) / accumulate).backward()
        if feature.requires_grad:
            gradient = down.decode(down.encode(arrived.grad))
            error, mode = compression_error(arrived.detach(), feature), FeedbackMode(deployment.feedback)
            feature.backward(compensate(gradient, error, len(feature) * accumulate, mode))
        plain_update(clipped, optimizer, recipe, batch.step)
    return {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}
