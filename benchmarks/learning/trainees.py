"""A network that is trained by the schemes of a trial: cut among workers, or by the members of a group."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.learning.cut_network import CutNetwork
from benchmarks.learning.images import Images
from benchmarks.learning.plan import BATCH_SIZE, NETWORKS, SUITES, Trial
from benchmarks.support.in_process_group import InProcessGroup
from cloud_trainer.groups.group import Group
from cloud_trainer.groups.group_weights import GroupWeights
from shared.codec import FeedbackMode, codec_by_name
from shared.execution.blocks import Method
from shared.execution.in_process_session import InProcessSession
from shared.execution.split import EDGE, TRAINER
from shared.execution.step_in_flight import Parcel
from shared.model.build import build_checked_chain
from shared.model.chain import Chain
from shared.placement import Cargo, Placement, Route, Rows, Source, Tile
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import BatchLoss, LossHead, whole_loss

Batches = Iterator[tuple[Tensor, Tensor]]


class Trainee(Protocol):
    """One training under way."""

    def train_epoch(self, epoch: int, batches: Batches) -> Sequence[BatchLoss]:
        """Do the steps of an epoch; returns the losses of the batches."""

    def accuracy(self, test: Images) -> float:
        """Return the share of the test set that is right, features compressed as in training."""

    def whole_accuracy(self, test: Images) -> float | None:
        """Return that of the model in one piece, features as they are, after the last epoch; None where that is the same."""


def make_trainee(trial: Trial, example: Tensor, device: torch.device) -> Trainee:
    """Make what a trial trains. example: inputs of a batch."""
    return (TrainedGroup if SUITES[trial.suite].members else TrainedCut)(trial, example, device)


class TrainedCut:
    """A network whose blocks are cut among workers, and whose scheme changes at milestones."""

    def __init__(self, trial: Trial, example: Tensor, device: torch.device) -> None:
        first, *later = SUITES[trial.suite].configs[trial.config]
        schemes = {0: first, **dict(zip(trial.milestones, later, strict=False))}
        cuts = NETWORKS[trial.network].cuts[trial.suite]
        self._network = CutNetwork(_chain(trial, example), cuts, trial.recipe(), schemes, device)
        self.train_epoch = self._network.train_epoch

    def accuracy(self, test: Images) -> float:
        """See `Trainee.accuracy`."""
        return accuracy(self._network.evaluate(test.in_order(BATCH_SIZE)))

    def whole_accuracy(self, test: Images) -> float | None:
        """See `Trainee.whole_accuracy`."""
        whole = self._network.evaluate_whole(test.in_order(BATCH_SIZE))
        return None if whole is None else accuracy(whole)


class TrainedGroup:
    """Members that share each batch, and the group at a trainer that has the weights. It keeps one scheme."""

    def __init__(self, trial: Trial, example: Tensor, device: torch.device) -> None:
        suite, recipe = SUITES[trial.suite], trial.recipe()
        self._trial, self._ranks = trial, range(suite.members)
        self._shard = BATCH_SIZE // suite.members
        (scheme,) = suite.configs[trial.config]
        held = _chain(trial, example[: self._shard])
        weights = GroupWeights(HeldBlocks(held, recipe, device, range(len(held.blocks))), scheme.downlink_codec)
        keeps_residuals = scheme.feedback is not FeedbackMode.OFF

        def member(rank: int, give: Callable[[Parcel], object]) -> InProcessSession:
            chains = {worker: _chain(trial, example[: self._shard]) for worker in (EDGE, TRAINER)}
            method = Method(LossHead(recipe.loss, None), first_sample=rank * self._shard)
            codecs = {
                Cargo.WEIGHT_GRADIENT: scheme.codec if keeps_residuals else "raw",
                Cargo.WEIGHTS: scheme.downlink_codec,
            }
            placement = _copies(len(held.blocks), self._shard, codecs)
            given = give if keeps_residuals else _by_codec(scheme.codec, give)
            return InProcessSession(chains, placement, recipe, method, device, given)

        self._members = InProcessGroup({TRAINER: Group(weights, self._ranks)}, member)

    def train_epoch(self, epoch: int, batches: Batches) -> Sequence[BatchLoss]:
        """See `Trainee.train_epoch`; the losses are those of the first member."""
        whole = list(batches)
        shards = {rank: (self._part(batch, rank) for batch in whole) for rank in self._ranks}
        return self._members.train((epoch + 1) * self._trial.steps_per_epoch, shards)[0]

    def accuracy(self, test: Images) -> float:
        """See `Trainee.accuracy`: of the first member."""
        member = self._members.member(0)
        return accuracy(whole_loss([member.evaluate(*batch) for batch in test.in_order(self._shard)]))

    def whole_accuracy(self, test: Images) -> float | None:  # noqa: ARG002
        """See `Trainee.whole_accuracy`: no feature crosses a cut."""
        return None

    def _part(self, batch: tuple[Tensor, Tensor], rank: int) -> tuple[Tensor, Tensor]:
        inputs, labels = batch
        rows = slice(rank * self._shard, (rank + 1) * self._shard)
        return inputs[rows], labels[rows]


def _copies(blocks: int, samples: int, codecs: Mapping[Cargo, str]) -> Placement:
    """Return the placement of a member that computes all blocks, of which a trainer has the weights.

    codecs: of gradients and of weights.
    """
    whole = Rows(0, samples)
    return Placement(
        version=0,
        blocks=blocks,
        batch_size=samples,
        workers=(EDGE, TRAINER),
        tiles=(Tile(EDGE, 0, blocks, whole),),
        sources=(Source(EDGE, whole),),
        owners=dict.fromkeys(range(blocks), TRAINER),
        codecs={
            Route(EDGE, TRAINER, Cargo.WEIGHT_GRADIENT): codecs[Cargo.WEIGHT_GRADIENT],
            Route(TRAINER, EDGE, Cargo.WEIGHTS): codecs[Cargo.WEIGHTS],
        },
    )


def _by_codec(name: str, give: Callable[[Parcel], object]) -> Callable[[Parcel], object]:
    """Return what gives gradients as a codec leaves them; what it takes is lost."""
    codec = codec_by_name(name)

    def given(one: Parcel) -> object:
        assert isinstance(one.load, dict)
        received = {
            name: codec.decode(codec.encode(tensor)) if name.startswith("gradient/") else tensor
            for name, tensor in one.load.items()
        }
        return give(replace(one, load=received))

    return given


def _chain(trial: Trial, example: Tensor) -> Chain:
    """Build the network of a trial, channels last, as the images are: a third less time in a CPU's convolutions."""
    network = NETWORKS[trial.network]
    chain = build_checked_chain(network.factory, network.kwargs, trial.seed, example.cpu())
    for block in chain.blocks:
        convert_conv2d_weight_memory_format(block.module, torch.channels_last)
    return chain


def accuracy(loss: BatchLoss) -> float:
    """Return the share of samples that were right."""
    return (loss.correct or 0) / loss.samples
