"""The profile: measurements of a model on its workers and the links between them, as data.

One type serves two workers, chains and all other plans (paper 000, 5.2). It knows nothing of files, of permitted choices, or of
the use of the numbers. Its file is another thing (`document.py`): of times by samples it has no seconds of whole batches, which
follow from them (`with_batch_size`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from edge_agent.planning.measurements import (
    Entries,
    Floats,
    Linear,
    ProfiledBlock,
    Seconds,
    at_bits,
    bytes_before,
)
from edge_agent.planning.operation_costs import BlockCosts, BlockSeconds
from edge_agent.planning.rates import Rates, in_series
from shared.errors import PlanError

Hop = tuple[str, str]
"""Two workers, the one nearer to the samples first."""

DEFAULT_CODEC_FAMILY = "uniform"
"""Family of a profile that names none."""


@dataclass(frozen=True)
class MessageSeconds:
    """Cost of a step on a worker for each link that it uses, beside computing and encoding: the stream, and the passing
    on of tensors."""

    seconds: Seconds = 0.0
    seconds_per_byte: Seconds = 0.0
    """Seconds for each byte that it sends and receives."""
    waited_seconds: Seconds = 0.0
    """Part that a batch waits for at K = 0. The worker does the rest while the batch is away."""


NO_MESSAGE = MessageSeconds()


@dataclass(frozen=True, eq=False)
class WorkerProfile:
    """The times of one worker. Tables have the seconds per step of the blocks [i, j) at [i, j], shape (L + 1, L + 1)."""

    name: str
    replayed: Floats
    """Forward, backward and update, with a second forward pass if the backward waits. NaN if not measured."""
    serial: Floats
    """Same at K = 0, without a second forward pass. NaN: as `replayed`."""
    message: MessageSeconds = NO_MESSAGE

    @cached_property
    def at_once(self) -> Floats:
        """Return the table that counts at K = 0: `serial`, and `replayed` if that was not measured. What `replayed` has not was
        not measured at all, or may not be chosen."""
        return np.where(np.isnan(self.serial) | np.isnan(self.replayed), self.replayed, self.serial)

    def seconds_at(self, staleness: int | None) -> Floats:
        """Return the table that counts with this K; None for one above 0 that is not chosen yet."""
        return self.at_once if staleness == 0 else self.replayed

    def slowed(self, factor: float) -> "WorkerProfile":
        """Return the same worker with all its times multiplied."""
        return replace(self, replayed=self.replayed * factor, serial=self.serial * factor)


class MeasuredLink(NamedTuple):
    """A link between two workers when it was measured; None if it was not."""

    uplink: float | None = None
    """Bits per second away from the samples."""
    downlink: float | None = None
    round_trip_seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Profile:
    """A model of L blocks on W workers. Lists by cut have L + 1 entries; index = blocks before the cut."""

    model: str
    batch_size: int
    blocks: tuple[ProfiledBlock, ...]
    feature_bytes: Entries
    """Bytes of the float32 feature that crosses a cut forward."""
    gradient_bytes: Entries
    """Bytes of the float32 error gradient that crosses it backward."""
    workers: tuple[WorkerProfile, ...]
    """Workers, nearest to the samples first."""
    links: Mapping[Hop, MeasuredLink] = field(default_factory=dict)
    """Links between workers, each pair once."""
    encode: Linear | None = None
    """Time of encoding a feature, by the bytes of its float32 form. None when it was not measured: then only 32 bits
    can be planned with."""
    codec_family: str = DEFAULT_CODEC_FAMILY
    """Family of the codecs with which `encode` and `min_bits` were measured. They say nothing of another."""
    min_bits: tuple[int | None, ...] | None = None
    """Smallest width within the accuracy budget at each cut. None as a whole without a calibration: then any is allowed."""
    max_staleness: int | None = None
    """Largest K within the accuracy budget; None if unknown."""
    links_stay: bool = False
    """True if links stay in their places when their workers change places, because nothing else is known of them."""
    by_samples: BlockCosts | None = None
    """Costs of every block for any number of samples; None if only whole batches were measured."""
    shared_segments: tuple[tuple[Hop, ...], ...] = ()
    """Links that lie on one segment of a network: what is sent at once has equal parts of it, each way."""
    samples_ahead: int = 0
    """Steps whose samples and labels may leave before K lets them begin (`data.ahead`). Not in the file."""
    remarks: Mapping[str, Any] = field(default_factory=dict)
    """Notes on the measurement as JSON, for people."""

    def __len__(self) -> int:
        """Return L, the number of blocks."""
        return len(self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the workers' names."""
        return tuple(worker.name for worker in self.workers)

    def worker(self, name: str) -> WorkerProfile:
        """Return the worker of a name. KeyError if there is none."""
        return {worker.name: worker for worker in self.workers}[name]

    @property
    def fewest_samples(self) -> tuple[int, ...]:
        """Return the fewest samples that a part of each block can have."""
        return tuple(
            self.batch_size if block.whole else min(block.min_samples, self.batch_size) for block in self.blocks
        )

    @cached_property
    def bytes_before(self) -> Floats:
        """Return the bytes of the blocks [0, c), for each cut c. Shape (L + 1,)."""
        return np.array(bytes_before(self.blocks))

    @cached_property
    def sizes(self) -> tuple[Floats, Floats]:
        """Return `feature_bytes` and `gradient_bytes` as arrays, NaN if not measured. Shapes (L + 1,)."""
        return np.array(self.feature_bytes, dtype=np.float64), np.array(self.gradient_bytes, dtype=np.float64)

    @cached_property
    def encode_seconds(self) -> Floats:
        """Return the seconds of encoding the feature at each cut in fewer than 32 bits, NaN if not measured. Shape (L + 1,)."""
        feature_bytes, _ = self.sizes
        if self.encode is None:
            return np.full_like(feature_bytes, np.nan)
        return self.encode.seconds_per_unit * feature_bytes + self.encode.seconds

    def link(self, near: str, far: str) -> MeasuredLink | None:
        """Return the link between two workers, up from the first; None if it is unknown."""
        if (known := self.links.get((near, far))) is not None:
            return known
        turned = self.links.get((far, near))
        return turned and MeasuredLink(turned.downlink, turned.uplink, turned.round_trip_seconds)

    def rates(self, near: str, far: str) -> Rates:
        """Return the same as rates. PlanError if they were not measured."""
        link = self.link(near, far)
        if link is None or link.uplink is None or link.downlink is None:
            raise PlanError(
                f"nothing is known of the rates of a link from {near!r} to {far!r}; measure it, or add it to the profile"
            )
        return Rates(link.uplink, link.downlink, link.round_trip_seconds or 0.0)

    def round_trip_seconds(self, near: str, far: str) -> float:
        """Return the round trip between two workers; 0 if it was not measured."""
        link = self.link(near, far)
        return 0.0 if link is None else link.round_trip_seconds or 0.0

    def with_gradient_bits(self, bits: int) -> "Profile":
        """Return the same with error gradients of so many bits a number. The schema has float32 ones."""
        return replace(self, gradient_bytes=at_bits(self.gradient_bytes, bits))

    def named(self, names: Sequence[str]) -> "Profile":
        """The same with other names for its workers."""
        renamed = dict(zip(self.names, names, strict=True))
        return replace(
            self,
            workers=tuple(replace(worker, name=renamed[worker.name]) for worker in self.workers),
            links={(renamed[near], renamed[far]): link for (near, far), link in self.links.items()},
            by_samples=self.by_samples and self.by_samples.named(renamed),
            shared_segments=tuple(
                tuple((renamed[near], renamed[far]) for near, far in hops) for hops in self.shared_segments
            ),
        )

    def with_worker(self, worker: WorkerProfile) -> "Profile":
        """Return the same with other times of the worker of that name."""
        workers = tuple(worker if one.name == worker.name else one for one in self.workers)
        return replace(self, workers=workers)

    def with_links(self, links: Mapping[Hop, MeasuredLink]) -> "Profile":
        """Return the same with these links. The others stay."""
        turned = {(far, near) for near, far in links}
        return replace(self, links={hop: link for hop, link in self.links.items() if hop not in turned} | dict(links))

    def ordered(self, names: Sequence[str]) -> "Profile":
        """Return the same with its workers in another order. PlanError if a link between neighbours is unknown."""
        workers = tuple(self.worker(name) for name in names)
        if self.links_stay:
            places = dict(zip(self.names, names, strict=True))
            return replace(
                self,
                workers=workers,
                links={(places[near], places[far]): link for (near, far), link in self.links.items()},
            )
        for hop in pairwise(names):
            self.rates(*hop)
        return replace(self, workers=workers)

    def among(self, names: Collection[str]) -> "Profile":
        """Return the same without the workers that are not named.

        An unknown link across a removed worker gets the rates of the links on both sides: the least ones count.
        """
        kept = [worker.name for worker in self.workers if worker.name in names]
        links = {hop: link for hop, link in self.links.items() if set(hop) <= set(kept)}
        for near, far in pairwise(kept):
            if self.link(near, far) is None and (passed := self.way(near, far)) is not None:
                links[near, far] = passed
        return replace(self, workers=tuple(self.worker(name) for name in kept), links=links)

    def way(self, near: str, far: str) -> MeasuredLink | None:
        """Return the link between two workers. If it is unknown, return the path through all between them."""
        if (known := self.link(near, far)) is not None:
            return known
        names = self.names[self.names.index(near) : self.names.index(far) + 1]
        try:
            path = in_series([self.rates(*hop) for hop in pairwise(names)])
        except PlanError:
            return None
        return MeasuredLink(path.uplink, path.downlink, path.round_trip_seconds)


def no_times(blocks: int) -> Floats:
    """Return a table without measurements."""
    return np.full((blocks + 1, blocks + 1), math.nan)


def with_batch_size(profile: Profile, batch_size: int) -> Profile:
    """Return a profile that has costs by samples for other batches. PlanError for an empty batch."""
    if batch_size < 1:
        raise PlanError(f"the batch size is {batch_size}; it must be 1 or more")
    costs = profile.by_samples
    assert costs is not None
    whole = tuple(size * batch_size for size in costs.feature_bytes)
    return replace(
        profile,
        batch_size=batch_size,
        feature_bytes=whole,
        gradient_bytes=whole,
        workers=tuple(
            _whole_batches(name, each, batch_size, costs.message_at(name)) for name, each in costs.blocks.items()
        ),
    )


def _whole_batches(name: str, blocks: tuple[BlockSeconds, ...], batch_size: int, message: Linear) -> WorkerProfile:
    """Return the same as seconds of runs of blocks on whole batches. message: each that the worker sends or receives."""
    forward, rest = (
        np.array([0.0, *accumulate(seconds)])
        for seconds in (
            [block.forward.at(batch_size) for block in blocks],
            [block.forward.at(batch_size) + block.backward.at(batch_size) + block.update for block in blocks],
        )
    )
    serial = _runs_between(rest)
    replayed = serial + _runs_between(forward)
    replayed[:, -1] = serial[:, -1]  # after the last block the backward pass follows at once
    # A link that is used carries a feature and an error gradient in a step. The next step waits for what the second costs.
    both = MessageSeconds(2 * message.seconds, message.seconds_per_unit, message.seconds)
    return WorkerProfile(name, replayed, serial, both)


def _runs_between(before: Floats) -> Floats:
    """Return the seconds of the blocks [i, j) at [i, j], of those of the blocks [0, c). NaN where there is none."""
    table = no_times(len(before) - 1)
    first, stop = np.triu_indices(len(before), 1)
    table[first, stop] = before[stop] - before[first]
    return table
