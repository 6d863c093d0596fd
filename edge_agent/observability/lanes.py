"""The lanes of a time line: one for each worker of a placement, one for the device's codecs, one for each way of a link."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from shared.placement import AGENT, Link, Placement

BETWEEN_TRAINERS = "link"
"""The phase of a way of a link that the device is no end of."""

_TWO_WORKERS = {
    "edge": "P1 edge compute",
    "codec": "encode",
    "uplink": "P2 uplink",
    "cloud": "P3 cloud compute",
    "downlink": "P4 downlink",
}
"""The titles where there is one trainer at most, by phase, from top to bottom."""
TIMED = tuple(_TWO_WORKERS)
"""The phases whose work is drawn."""


class TimelineLane(NamedTuple):
    """One row of a time line."""

    phase: str
    """Name of the work here: one of `PHASES`, "codec", or `BETWEEN_TRAINERS`."""
    of: str
    """Worker, or "near>far" for tensors from one worker to another. Empty in files that do not say it."""
    by_reports: bool = False
    """True if a trainer is known by its reports alone, because the device has no link to it."""


def way(sender: str, receiver: str) -> TimelineLane:
    """Return the lane of the tensors from one worker to another."""
    phase = "uplink" if sender == AGENT else "downlink" if receiver == AGENT else BETWEEN_TRAINERS
    return TimelineLane(phase, f"{sender}>{receiver}")


def trainer_lane(name: str, links: Iterable[Link]) -> TimelineLane:
    """Return the lane of a trainer's computations."""
    return TimelineLane("cloud", name, by_reports=not any({AGENT, name} == set(link) for link in links))


def lanes_of(placement: Placement, links: Sequence[Link]) -> list[TimelineLane]:
    """Return the lanes of a placement from top to bottom: the device, then each trainer between its arrivals and its sends.

    A link stands with the later of its two workers.
    """
    lanes = [
        TimelineLane("edge", AGENT),
        *([TimelineLane("codec", AGENT)] if any(AGENT in link for link in links) else []),
    ]
    before = [AGENT]
    for name in placement.workers:
        if name == AGENT:
            continue
        neighbours = [other for other in before if any({other, name} == set(link) for link in links)]
        lanes += [way(other, name) for other in neighbours]
        lanes.append(trainer_lane(name, links))
        lanes += [way(name, other) for other in neighbours]
        before.append(name)
    return lanes


def titles_of(lanes: Collection[TimelineLane]) -> dict[TimelineLane, str]:
    """Return the titles of lanes; phases have their numbers where one trainer at most takes part."""
    phases = _TWO_WORKERS if len({lane.of for lane in lanes if lane.phase == "cloud"}) <= 1 else {}
    return {lane: phases.get(lane.phase) or _title(lane) for lane in lanes}


def _title(lane: TimelineLane) -> str:
    if lane.phase == "codec":
        return _TWO_WORKERS["codec"]
    if lane.phase in ("edge", "cloud"):
        return f"{lane.of} compute" + (", by its reports" if lane.by_reports else "")
    return lane.of.replace(">", " → ")
