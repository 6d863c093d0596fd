"""The cost model: how long a step takes at a deployment over a link (paper 000, Eq. 9 to 13).

Arithmetic on arrays, so that all deployments are costed at once. Knows nothing of what may be chosen; that is the planners'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from shared.planning.measurements import FLOAT32_BITS, Bools, Floats, Ints
from shared.planning.profile import Profile
from shared.planning.rates import Rates


@dataclass(frozen=True, order=True)
class PlannedDeployment:
    """A deployment as planning counts it: what planners and the engine choose.

    The `Deployment` of `shared.placement` is what a run has: it names codecs, and planning knows only how many bits they make.
    """

    cut: int
    """Blocks on the edge; as many as the model has is edge-only."""
    staleness: int
    """K: a batch starts when the one K + 1 before it is settled."""
    bits: int
    """Width of the features sent; 32 sends float32 as it is, with no encoding."""

    def __str__(self) -> str:
        return f"cut {self.cut}, staleness {self.staleness}, {self.bits} bits"


class PhaseSeconds(NamedTuple):
    """T1, T2, T3, T4 in seconds per step, each an array over deployments, shape (n,)."""

    edge: Floats
    uplink: Floats
    cloud: Floats
    downlink: Floats
    busy: Floats
    """How long a step keeps the edge at work. At K = 0 that may be more than T1, because part of the work on the stream goes
    on while the batch is away."""
    round_trip: Floats
    """Seconds that a batch travels besides; they keep no phase busy."""

    def longest(self) -> Floats:
        """T_max."""
        return np.maximum(np.maximum(self.busy, self.uplink), np.maximum(self.cloud, self.downlink))

    def total(self) -> Floats:
        """T_sum, and the round trip: from the start of a batch until it is settled, where it waits for no other."""
        return self.edge + self.uplink + self.cloud + self.downlink + self.round_trip

    def filling(self) -> Floats:
        """Seconds until an empty pipeline is full."""
        return np.maximum(0.0, self.total() - self.longest())


class Phases(Protocol):
    """What `steady_seconds` asks of the phases: of one placement, or of many deployments of two workers at once."""

    def longest(self) -> Floats | float:
        """T_max."""

    def total(self) -> Floats | float:
        """T_sum, and the round trips."""


class StepWork(NamedTuple):
    """What a step costs at n (cut, bits) pairs whatever the link: seconds to compute, bits to carry. Arrays of shape (n,).

    NaN where the profile has no measurement.
    """

    cuts: Ints
    bits: Ints
    edge_seconds: Floats
    """Computing and encoding, with the replay of a late gradient."""
    uplink_bits: Floats
    cloud_seconds: Floats
    downlink_bits: Floats
    serial_edge_seconds: Floats
    """The same at K = 0, where nothing is replayed."""
    overhead_seconds: Floats
    """Seconds of work on the stream, which the edge does beside both."""
    serial_overhead_seconds: Floats
    """The part of it that a batch waits for at K = 0; the rest goes on while it is away."""
    round_trips: Floats
    """How often a batch goes up and comes back: once, or never where the edge does all."""

    def computing(self, *, serial: bool | Bools) -> Floats:
        """Seconds of computing and encoding on the edge. serial: at K = 0, for all or each."""
        return np.where(serial, self.serial_edge_seconds, self.edge_seconds)

    def overhead(self, *, serial: bool | Bools) -> Floats:
        """Seconds of work on the stream on the edge. serial: as for `computing`."""
        return np.where(serial, self.serial_overhead_seconds, self.overhead_seconds)

    def phases(
        self, rates: Rates, edge_factor: float = 1.0, cloud_factor: float = 1.0, *, serial: bool | Bools = False
    ) -> PhaseSeconds:
        """Phase times over a link (Eq. 9). The factors say how much slower than profiled each side is today.

        serial: at K = 0, for all or each.
        """
        computing = self.computing(serial=serial) * edge_factor
        edge = computing + self.overhead(serial=serial)
        return PhaseSeconds(
            edge,
            self.uplink_bits / rates.uplink,
            self.cloud_seconds * cloud_factor,
            self.downlink_bits / rates.downlink,
            np.maximum(edge, computing + self.overhead_seconds),
            self.round_trips * rates.round_trip_seconds,
        )

    def measured(self) -> Bools:
        """Which of the n have all that is needed to cost them, shape (n,)."""
        return np.isfinite(self.edge_seconds + self.uplink_bits + self.cloud_seconds + self.downlink_bits)

    def take(self, index: ArrayLike) -> "StepWork":
        """The rows that a mask or an array of indices picks."""
        return StepWork(*(column[np.asarray(index)] for column in self))

    def joined(self, other: "StepWork") -> "StepWork":
        """These rows and then those."""
        cuts, bits = np.concatenate([self.cuts, other.cuts]), np.concatenate([self.bits, other.bits])
        rest = (np.concatenate([mine, theirs]) for mine, theirs in zip(self[2:], other[2:], strict=True))
        return StepWork(cuts, bits, *rest)


def work_of(profile: Profile, cuts: Sequence[int] | Ints, bits: Sequence[int] | Ints) -> StepWork:
    """The work of a step at each pair (cuts[i], bits[i]) of a profile of two workers; cuts within 1..L.

    T1 includes encoding where bits < 32, and the overhead of the stream where it was measured. Only the feature is compressed,
    not the error gradient (paper 000, 4.4). At edge-only nothing is sent and nothing is left for the trainer.
    """
    cuts, bits = np.asarray(cuts, dtype=np.int64), np.asarray(bits, dtype=np.int64)
    edge, trainer = profile.workers
    feature_bytes, gradient_bytes = (
        np.array(entries, dtype=np.float64)[cuts] for entries in (profile.feature_bytes, profile.gradient_bytes)
    )
    edge_seconds, serial_seconds = edge.replayed[0, cuts], edge.seconds(serial=True)[0, cuts]
    cloud_seconds = trainer.replayed[cuts, len(profile)]
    if profile.encode is None:
        encode_seconds = np.full_like(feature_bytes, np.nan)
    else:
        encode_seconds = profile.encode.seconds_per_byte * feature_bytes + profile.encode.seconds
    split = cuts < len(profile)
    added_seconds = np.where(split & (bits < FLOAT32_BITS), encode_seconds, 0.0)
    uplink_bits = np.where(split, feature_bytes * 8 * bits / FLOAT32_BITS, 0.0)
    downlink_bits = np.where(split, gradient_bytes * 8, 0.0)
    overhead_seconds = edge.message.seconds_per_byte / 8 * (uplink_bits + downlink_bits) + edge.message.seconds
    return StepWork(
        cuts,
        bits,
        edge_seconds + added_seconds,
        uplink_bits,
        np.where(split, cloud_seconds, 0.0),
        downlink_bits,
        serial_seconds + added_seconds,
        np.where(split, overhead_seconds, 0.0),
        np.where(split, edge.message.waited_seconds, 0.0),
        split.astype(np.float64),
    )


def pipeline_seconds(phases: PhaseSeconds, staleness: int | Ints, horizon_steps: int) -> Floats:
    """Seconds that `horizon_steps` steps take with staleness K (Eq. 12), shape (n,), broadcast against K when it is an array.

    K = 0 gives Eq. 10 where the edge is not busy for longer, K >= horizon - 1 gives Eq. 11. Never rises with K.
    """
    longest, total = phases.longest(), phases.total()
    groups = -(-horizon_steps // (staleness + 1))
    waiting = np.maximum(0.0, total - (staleness + 1) * longest)
    return (horizon_steps - 1) * longest + total + (groups - 1) * waiting


def steady_seconds(phases: Phases, staleness: int | Ints) -> Floats:
    """Seconds per step once the pipeline is full, shape (n,): Eq. 12 over an endless horizon, with the round trip.

    It is max(T_max, (T_sum + round trip) / (K + 1)).

    staleness: K, one for all or one for each.
    """
    return np.maximum(phases.longest(), phases.total() / (staleness + 1))


def migration_bits(profile: Profile, from_cuts: ArrayLike, to_cuts: ArrayLike) -> tuple[Floats, Floats]:
    """Bits that blocks carry up and down when the cut moves (Eq. 13), each of the shape that both broadcast to.

    Blocks that leave the edge go up, blocks that come to it go down; of the two, one is always 0.
    """
    bytes_before = profile.bytes_before
    moved = 8 * (bytes_before[np.asarray(to_cuts)] - bytes_before[np.asarray(from_cuts)])
    return np.maximum(0.0, -moved), np.maximum(0.0, moved)


def migration_seconds(profile: Profile, from_cuts: ArrayLike, to_cuts: ArrayLike, rates: Rates) -> Floats:
    """U of Eq. 13: seconds to move the blocks between two cuts, with the round trip of asking; 0 where the cut stays."""
    up, down = migration_bits(profile, from_cuts, to_cuts)
    asking_seconds = np.where(np.asarray(from_cuts) != np.asarray(to_cuts), rates.round_trip_seconds, 0.0)
    return up / rates.uplink + down / rates.downlink + asking_seconds
