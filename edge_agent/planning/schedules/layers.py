"""Layers: the bytes of each layer of a model and its seconds on one member of a group, from a file or a profile.

A layer without parameters belongs to the one before it, and branches of one depth are one layer.
"""

from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path

from edge_agent.planning.profile import Profile, ProfileDocument, load_document, parse_document
from edge_agent.planning.profile_operations import FORWARD_SHARE
from edge_agent.planning.rates import Rates
from shared.errors import PlanError

BITS_PER_BYTE = 8
MOST_MEMBERS = 1024
Seconds = tuple[float, ...]
"""Seconds of each layer."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model on one member, first to last, with its link to itself."""

    model: str
    message_seconds: float
    """Seconds that each message costs beside its bytes."""
    names: tuple[str, ...]
    bytes: tuple[int, ...]
    """Bytes of the parameters of each layer; its gradient has as many."""
    pull_seconds: Seconds
    forward_seconds: Seconds
    backward_seconds: Seconds
    push_seconds: Seconds

    def __len__(self) -> int:
        """Return L."""
        return len(self.names)

    def among(self, members: int) -> "Layers":
        """Return the layers of one of so many members.

        They work alike and share the trainer's link, so a transfer takes each of them as many times as long. A message costs
        each of them the same. PlanError for a number of members that is out of range.
        """
        check_members(members)
        return self.carried(members, members)

    def carried(self, push: float, pull: float) -> "Layers":
        """Return the layers where gradients take so many times as long to push, and weights to pull."""
        return replace(
            self,
            pull_seconds=tuple(pull * seconds for seconds in self.pull_seconds),
            push_seconds=tuple(push * seconds for seconds in self.push_seconds),
        )


def check_members(members: int) -> None:
    """Refuse a number of members that is out of range. Raises PlanError."""
    if not 1 <= members <= MOST_MEMBERS:
        raise PlanError(f"the group has {members} members; it must have 1 to {MOST_MEMBERS}")


def load_layers(path: Path) -> Layers:
    """Read the layers in the file of a profile. PlanError when it cannot be read, has an error, or has none."""
    return _layers(load_document(path), str(path))


def parse_layers(decoded: object, where: str) -> Layers:
    """Read the layers in a decoded JSON object. `where` begins every error."""
    return _layers(parse_document(decoded, where), where)


def _layers(document: ProfileDocument, where: str) -> Layers:
    if not document.layers or document.message_seconds is None:
        missing = "message_seconds" if document.layers else "layers"
        raise PlanError(
            f"{where}: {missing} is missing; a schedule is made of layers, or of a profile of the device and a link"
        )
    return Layers(
        model=document.model,
        message_seconds=document.message_seconds,
        names=tuple(layer.name for layer in document.layers),
        bytes=tuple(layer.bytes for layer in document.layers),
        pull_seconds=tuple(layer.pull_seconds for layer in document.layers),
        forward_seconds=tuple(layer.forward_seconds for layer in document.layers),
        backward_seconds=tuple(layer.backward_seconds for layer in document.layers),
        push_seconds=tuple(layer.push_seconds for layer in document.layers),
    )


def layers_of(profile: Profile, rates: Rates, cut: int | None = None) -> Layers:
    """Return the layers of a profile's first worker, by what its blocks take at K = 0: all, or those before a cut.

    Blocks that were only measured together are one layer. A message costs the round trip, and half of what the device takes for
    the messages of a step. PlanError if the seconds until the cut, or the bytes of parameters, are unknown.
    """
    worker, stop = profile.workers[0], len(profile) if cut is None else cut
    runs = _measured_runs([float(seconds) for seconds in worker.at_once[0][: stop + 1]])
    if not runs or runs[-1][1] != stop:
        which = f"all {stop} blocks" if stop == len(profile) else f"the first {stop} blocks"
        raise PlanError(
            f"the profile has no time of {which} on {worker.name!r}; a member of a group runs them all, so profile a device "
            "that can"
        )
    blocks = [profile.blocks[first:last] for first, last, _ in runs]
    for block in profile.blocks[:stop]:
        if block.parameter_bytes is None:
            raise PlanError(
                f"the profile does not say the parameter_bytes of block {block.name!r}; profile again with `edge-agent profile`"
            )
    sizes = [round(sum(block.parameter_bytes or 0.0 for block in run)) for run in blocks]
    seconds = [seconds for _, _, seconds in runs]
    return Layers(
        model=profile.model,
        message_seconds=rates.round_trip_seconds + worker.message.seconds / 2,
        names=tuple("+".join(block.name for block in run) for run in blocks),
        bytes=tuple(sizes),
        pull_seconds=tuple(BITS_PER_BYTE * size / rates.downlink for size in sizes),
        forward_seconds=tuple(FORWARD_SHARE * each for each in seconds),
        backward_seconds=tuple((1.0 - FORWARD_SHARE) * each for each in seconds),
        push_seconds=tuple(BITS_PER_BYTE * size / rates.uplink for size in sizes),
    )


def _measured_runs(until: list[float]) -> list[tuple[int, int, float]]:
    """Return the runs of blocks between the cuts that were measured, and the seconds of each. until: of the blocks before
    each cut."""
    runs, first, before = [], 0, 0.0
    for stop, seconds in enumerate(until[1:], start=1):
        if not isnan(seconds):
            runs.append((first, stop, max(0.0, seconds - before)))
            first, before = stop, max(before, seconds)
    return runs
