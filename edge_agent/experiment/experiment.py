"""An experiment: the workload under a placement, and the blocks of it that are here."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from edge_agent.config import EdgeConfig
from edge_agent.experiment.labels import expect_classes
from edge_agent.experiment.placing import (
    check_named_codecs,
    check_permitted,
    codec_schedules,
    completed,
    configured_codecs,
    placement_of,
)
from edge_agent.experiment.privacy import permissions_of
from edge_agent.experiment.workload import Workload
from edge_agent.planning import Layout
from shared.errors import ConfigError
from shared.model.build import check_cut
from shared.placement import (
    AGENT,
    Cargo,
    Deployment,
    Placement,
    Route,
    at_cuts,
    crossings,
    gradient_crossings,
    hand_over,
    held_blocks,
    may_keep,
    parse_placement,
    two_workers,
)
from shared.registry import codec_bits, codec_of_bits
from shared.training.device import choose_device, prepare_device
from shared.training.held_blocks import HeldBlocks
from shared.training.precision import check_precision

T = TypeVar("T")


class Experiment(Workload):
    """Raises ConfigError, DataError or ModelError for what cannot be trained."""

    def __init__(self, config: EdgeConfig, schedule_steps: int | None = None) -> None:
        """See `Workload`."""
        super().__init__(config, schedule_steps)
        expect_classes(self)
        self.run_id = secrets.token_hex(16)
        """Names the run in the logs of all its processes, and its session on this device; one that is resumed keeps it."""
        self.placement = placement_of(self)
        self._labels_to = self.placement.labels
        """Workers that may have labels by the configuration, under every later placement; None where it does not say."""
        _check_source(self.placement)
        device = choose_device(config.compute.device)
        prepare_device(device, deterministic=config.compute.deterministic)
        check_precision(self.recipe.precision_of(AGENT), device, AGENT)
        precision = self.recipe.precision_of(AGENT)
        self.held = HeldBlocks(self.chain, self.recipe, device, held_blocks(self.placement, AGENT), precision)

    def placed(self, document: object, before: Placement) -> Placement:
        """The placement in a decoded document (isthmus.placement/v1) that may come after another one of the same session.

        Raises ConfigError for one that cannot be or is not permitted, DataError for labels that are the inputs themselves.
        """
        blocks, where = len(self.chain.blocks), "the placement"
        placement = parse_placement(document, where, blocks, before.batch_size, before.staleness)
        known = [AGENT, *(trainer.name for trainer in self.config.all_trainers)]
        if unknown := [name for name in placement.workers if name not in known]:
            raise ConfigError(f"worker {unknown[0]!r} is not configured; there are {', '.join(known)}")
        # A worker that has nothing to do now may have it later, so it stays.
        ranked = tuple(dict.fromkeys(placement.workers + before.workers))
        check_named_codecs(placement, self.config)
        placement = self.completed(replace(placement, workers=ranked))
        _check_source(placement)
        return placement

    def completed(self, placement: Placement) -> Placement:
        """The placement with the codec of every crossing.

        Raises ConfigError for one that cannot be or is not permitted, DataError for labels that are the inputs themselves.
        """
        return completed(placement, self, self._labels_to)

    def check(self, placement: Placement) -> None:
        """Refuse a placement that may not come into force by today's configuration. Raises as `completed` does."""
        check_permitted(placement, self, self._labels_to)

    @property
    def labels_to(self) -> frozenset[str] | None:
        """The workers that may have labels, under every placement; None where those that compute the loss may."""
        if not self.labels_that_are_inputs:
            return self._labels_to
        permitted = frozenset((AGENT, *self.config.privacy.inputs_to))
        return permitted if self._labels_to is None else permitted & self._labels_to

    def is_whole(self, block: int) -> bool:
        """Tell whether one worker has to run a block on all samples of a batch."""
        return block == len(self.chain.blocks) - 1 and bool(self.one_judge)

    def handed_over(self, before: Placement, successor: str, worker: str = "") -> Placement:
        """The placement that gives a trainer without blocks all that another one has.

        worker: the other one; left out, the only one with blocks. Raises ConfigError for trainers for which there is no
        such placement, and otherwise as `completed`.
        """
        known = [trainer.name for trainer in self.config.all_trainers]
        holding = trainers_with_blocks(before)
        for name in filter(None, (successor, worker)):
            if name not in known:
                raise ConfigError(f"trainer {name!r} is not configured; there are {', '.join(known) or 'none'}")
        if successor in holding:
            raise ConfigError(f"trainer {successor!r} has blocks already")
        if worker and worker not in holding:
            raise ConfigError(f"trainer {worker!r} has no blocks; {' and '.join(holding) or 'no trainer'} has")
        if not worker and len(holding) != 1:
            raise ConfigError(
                f"the trainers {', '.join(holding)} have blocks; name the one whose blocks {successor!r} is to have"
                if holding
                else f"no trainer has blocks that {successor!r} could have"
            )
        placed = hand_over(before, worker or holding[0], successor)
        self.check(placed)
        return placed

    def with_trainer(self, before: Placement, name: str) -> Placement:
        """The placement of two workers with this trainer in the place of the other one, which may have no blocks.

        Raises ConfigError or DataError if it may not have what the other one has.
        """
        (other,) = (worker for worker in before.workers if worker != AGENT)
        if other == name:
            return before
        placed = hand_over(before, other, name)
        self.check(placed)
        return placed

    def is_raw(self, block: int) -> bool:
        """Tell whether a block computes on raw samples, or on features off which they can be read."""
        return self.facts.computes_on_raw(block)

    def may_keep(self, block: int, worker: str) -> bool:
        """Tell whether a worker may keep replicas of a block by today's configuration."""
        return may_keep(block, worker, self.facts, permissions_of(self.config.privacy, self._labels_to))

    def laid_out(self, layout: Layout, before: Placement) -> Placement:
        """The placement of a layout that may come after another one of the same session. Errors as for `completed`.

        A codec stays where it has the width that is wanted; others are of the configured one's family.
        """
        placed = layout.placement(before.workers)
        # The order says who dials whom, so it stays.
        configured = (AGENT, *(trainer.name for trainer in self.config.all_trainers))
        order = before.workers if len(placed.workers) == len(before.workers) else configured
        workers = tuple(name for name in order if name in placed.workers)
        placed = self._after(before, replace(placed, version=before.version, workers=workers))
        first = self.config.deployment.first_codec
        codecs = {}
        for route, name in placed.codecs.items():
            bits = layout.width(route.sender, route.receiver)
            keeps = route.cargo is not Cargo.FEATURE or codec_bits(name) == bits
            codecs[route] = name if keeps else codec_of_bits(bits, first)
        return replace(placed, codecs=codecs)

    def cut_at(self, cuts: Sequence[int], before: Placement) -> Placement:
        """The placement of the same workers, each of which runs the next blocks, at other cuts.

        cuts: the blocks before each worker but the first; one that is L leaves the workers from there on without blocks.
        Raises ModelError for a cut out of range, and otherwise as `completed`.
        """
        for cut in cuts:
            check_cut(cut, self.chain)
        return self._after(before, at_cuts(before, cuts))

    def _after(self, before: Placement, placed: Placement) -> Placement:
        """The placement with the codec of every crossing: that of before, or the configured one. Errors as for `completed`."""
        heads = None if before.labels is None else frozenset(tile.worker for tile in placed.holders(placed.blocks - 1))
        placed = replace(placed, sources=before.sources, labels=heads)
        self.check(placed)
        configured = configured_codecs(self.config)
        everything = (*crossings(placed, self.facts), *gradient_crossings(placed, self.facts))
        routes = {Route(one.sender, one.receiver, one.cargo) for one in everything if one.cargo in configured}
        codecs = {route: before.codecs.get(route, configured[route.cargo]) for route in sorted(routes, key=str)}
        return replace(placed, codecs=codecs)

    @property
    def deployment(self) -> Deployment:
        """The placement in few numbers."""
        return self.deployment_of(self.placement)

    def deployment_of(self, placement: Placement) -> Deployment:
        """A placement in few numbers: how many blocks are here, K, and the codecs of this device's link.

        Where nothing crosses, the codecs are the configured ones.
        """
        here = {
            route.cargo: name for route, name in placement.codecs.items() if AGENT in (route.sender, route.receiver)
        }
        chosen = configured_codecs(self.config) | here
        return Deployment(
            version=placement.version,
            edge_blocks=len(held_blocks(placement, AGENT)),
            staleness=placement.staleness,
            codec=chosen[Cargo.FEATURE],
            downlink_codec=chosen[Cargo.ERROR_GRADIENT],
        )

    def begin_with(self, trainer: str) -> None:
        """Begin with this trainer in place of the only one of the placement. Raises ConfigError or DataError if it may not."""
        if trainer not in self.trainers:
            self.begin_at(replace(self.with_trainer(self.placement, trainer), version=0))

    def begin_at(self, placement: Placement) -> None:
        """Begin with another placement than the configuration's, one that is `completed`."""
        self.placement = placement
        self.held.hold(held_blocks(placement, AGENT), {})

    @property
    def trainers(self) -> tuple[str, ...]:
        """The trainers of the placement, nearest first."""
        return tuple(name for name in self.placement.workers if name != AGENT)

    @property
    def staleness_changes(self) -> dict[int, int]:
        """The steps after the first from which on the configuration sets another limit K, and which."""
        return self.config.deployment.staleness_schedule.changes(self.loader.steps_per_epoch)

    def codec_changes(self, cargo: Cargo) -> dict[int, str]:
        """The steps after the first from which on the configuration sets another codec for `cargo`, and which."""
        return codec_schedules(self.config)[cargo].changes(self.loader.steps_per_epoch)

    @property
    def scheduled_steps(self) -> list[int]:
        """The steps from which on the configuration changes anything, rising."""
        codecs = (self.codec_changes(cargo) for cargo in (Cargo.FEATURE, Cargo.ERROR_GRADIENT))
        return sorted(set(self.staleness_changes).union(*codecs))

    def scheduled_at(self, step: int, placement: Placement) -> Placement:
        """The placement with the K and the codecs that the schedules of the configuration prescribe for a step."""
        staleness = _at(step, self.config.deployment.first_staleness, self.staleness_changes)
        configured = configured_codecs(self.config)
        codecs = {cargo: _at(step, first, self.codec_changes(cargo)) for cargo, first in configured.items()}
        return with_settings(placement, staleness, codecs)


def _at(step: int, first: T, changes: Mapping[int, T]) -> T | None:
    """Return the value at a step; None if it never changes."""
    if not changes:
        return None
    return [first, *(value for position, value in changes.items() if position <= step)][-1]


def with_settings(placement: Placement, staleness: int | None, codecs: Mapping[Cargo, str | None]) -> Placement:
    """Return the placement with another K and other codecs. None leaves the present ones."""
    return replace(
        placement,
        staleness=placement.staleness if staleness is None else staleness,
        codecs={route: codecs.get(route.cargo) or name for route, name in placement.codecs.items()},
    )


def trainers_with_blocks(placement: Placement) -> list[str]:
    """List the trainers that have blocks."""
    return [name for name in placement.workers if name != AGENT and held_blocks(placement, name)]


def has_one_cut(placement: Placement) -> bool:
    """Tell whether two workers train on one cut: the first blocks are here, and the others, which may be none, on the
    trainer."""
    if len(placement.workers) != 2 or placement.owners:
        return False
    cut = sum(len(tile.blocks) for tile in placement.tiles_of(AGENT))
    expected = two_workers(*placement.workers, max(cut, 1), placement.blocks, placement.batch_size)
    return (set(placement.tiles), set(placement.sources)) == (set(expected.tiles), set(expected.sources))


def _check_source(placement: Placement) -> None:
    """Check that samples are on the device alone. Raises ConfigError."""
    others = [source.worker for source in placement.sources if source.worker != AGENT]
    if others or len(placement.sources) != 1:
        raise ConfigError(
            f"placement: {', '.join(others) or 'nobody'} is to have samples of its own; in this version all samples are on "
            f"this device, so sources may be left out, or name {AGENT!r} alone"
        )
