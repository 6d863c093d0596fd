"""Groups over shaped links, in real runs: six mixes of computing and transfer, and how the speed grows with the members."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from benchmarks.groups.foreign_peers import MXNET, ForeignPeer
from benchmarks.groups.measured import BUCKETS, MeasuredGroup, measure_group, measured_table, peer_name
from edge_agent.planner_names import DYNACOMM, FLOW, IBATCH, LAYERWISE, SEQUENTIAL
from edge_agent.planning.schedules import Layers

MESSAGE_SECONDS = 0.004
"""Cost of a message beside its bytes on these links: from a gradient that has left until its weights are here, two messages
took 8 to 11 ms more than their bytes."""
FORWARD_SHARE = 1 / 3
COMPUTE_SECONDS = 0.6
MEMBERS = 2
ALL_MEMBERS = 4
STRATEGIES_RUN = (FLOW, DYNACOMM, IBATCH, LAYERWISE, SEQUENTIAL)
BARRIERS = (IBATCH, LAYERWISE, SEQUENTIAL)
FLOW_GOAL, DYNACOMM_GOAL, TWICE_GOAL, PEER_GOAL, PEER_LIMIT, SCALE_GOAL = 1.08, 1.02, 1.5, 0.85, 1.05, 3.6
EXPOSED_GOAL = 0.8
ERROR_GOALS = (0.10, 0.20)
EVEN = (1.0,) * 12
TAPERED_BYTES = tuple(float(2**layer) ** 0.6 for layer in range(12))
"""Bytes as in most networks, whose first layers have few parameters and most of the computing."""
TAPERED_WORK = tuple(reversed([1.0 + 0.25 * layer for layer in range(12)]))


@dataclass(frozen=True)
class Mix:
    """A model and a link."""

    name: str
    megabits: float
    ratio: float
    """Seconds that all bytes take in one direction over those of computing."""
    sizes: Sequence[float] = TAPERED_BYTES
    """Bytes of the layers beside each other."""
    work: Sequence[float] = TAPERED_WORK
    """Seconds of the layers beside each other."""

    @property
    def layers(self) -> Layers:
        """The file of layers."""
        whole = self.ratio * COMPUTE_SECONDS * self.megabits * 1e6 / 8
        sizes = [4 * round(whole * size / sum(self.sizes) / 4) for size in self.sizes]
        carried = tuple(8 * size / (self.megabits * 1e6) for size in sizes)
        seconds = [COMPUTE_SECONDS * each / sum(self.work) for each in self.work]
        return Layers(
            self.name,
            MESSAGE_SECONDS,
            tuple(f"block{layer}" for layer in range(len(sizes))),
            tuple(sizes),
            carried,
            tuple(FORWARD_SHARE * each for each in seconds),
            tuple((1.0 - FORWARD_SHARE) * each for each in seconds),
            carried,
        )


ALIKE = "transfer equals compute"
MIXES = (
    Mix("transfer is half of compute", 100, 0.5),
    Mix(ALIKE, 100, 1.0),
    Mix("transfer is twice compute", 100, 2.0),
    Mix(ALIKE, 300, 1.0),
    Mix("transfer is half of compute", 500, 0.5),
    Mix("blocks alike, transfer equals compute", 200, 1.0, EVEN, EVEN),
)


@dataclass(frozen=True)
class Goal:
    """One goal, and what was found."""

    what: str
    found: float
    goal: str
    kept: bool


def measure_mix(mix: Mix, rounds: int, foreign: Mapping[ForeignPeer, Path]) -> MeasuredGroup:
    """Measure every strategy and the peers. foreign: see `measure_group`."""
    return measure_group(mix.layers, MEMBERS, STRATEGIES_RUN, BUCKETS, rounds, foreign)


def goals(mix: Mix, group: MeasuredGroup) -> Iterator[Goal]:
    """Hold a mix against its goals."""
    seconds, bound = group.medians, group.bound_seconds
    over = seconds[FLOW] / bound
    yield Goal("flow over the bound", over, f"{FLOW_GOAL}", over <= FLOW_GOAL)
    behind = seconds[DYNACOMM] / min(seconds[name] for name in BARRIERS)
    yield Goal("dynacomm over the best other barrier", behind, f"{DYNACOMM_GOAL}", behind <= DYNACOMM_GOAL)
    if mix.ratio >= 2.0:
        for rival in (DYNACOMM, SEQUENTIAL):
            times = seconds[rival] / seconds[FLOW]
            yield Goal(f"{rival} over flow", times, f"{TWICE_GOAL} or more", times >= TWICE_GOAL)
    beside = seconds[FLOW] / min(seconds[peer_name(each)] for each in BUCKETS)
    most = PEER_GOAL if mix.name == ALIKE else PEER_LIMIT
    yield Goal("flow over DDP", beside, f"{most}", beside <= most)
    if stores := [seconds[peer.name] for peer in MXNET if peer.name in seconds]:
        exposed = (seconds[FLOW] - COMPUTE_SECONDS) / (min(stores) - COMPUTE_SECONDS)
        yield Goal("flow over MXNet, seconds beside computing", exposed, f"{EXPOSED_GOAL}", exposed <= EXPOSED_GOAL)


def errors(groups: Sequence[MeasuredGroup]) -> list[float]:
    """Return by how much each measured strategy differs from the simulated one, as a part of it."""
    return [
        abs(row.simulated / row.seconds.median - 1.0)
        for group in groups
        for row in group.rows
        if row.simulated is not None
    ]


def error_goals(groups: Sequence[MeasuredGroup]) -> list[Goal]:
    """Hold the predictions of all groups against their goals."""
    found = errors(groups)
    pairs = zip(("median", "worst"), (median(found), max(found)), ERROR_GOALS, strict=True)
    return [
        Goal(f"error of the simulator, {word} of {len(found)}", error, f"{goal}", error <= goal)
        for word, error, goal in pairs
    ]


def measure_scale(rounds: int) -> tuple[MeasuredGroup, MeasuredGroup]:
    """Measure flow with one member and with four, where each has a link of its own to the trainer."""
    layers = MIXES[1].layers
    one, all_members = (measure_group(layers, members, (FLOW,), (), rounds) for members in (1, ALL_MEMBERS))
    return one, all_members


def scale_goal(one: MeasuredGroup, all_members: MeasuredGroup) -> Goal:
    """Hold the speed of four members against that of one."""
    times = all_members.members * one.medians[FLOW] / all_members.medians[FLOW]
    return Goal(
        f"samples a second of {all_members.members} members over one's",
        times,
        f"{SCALE_GOAL} or more",
        times >= SCALE_GOAL,
    )


def goals_table(rows: Mapping[str, Sequence[Goal]]) -> Table:
    """The goals, by the mix."""
    table = Table("", "what", "found", "goal", "", title="goals", title_justify="left")
    for name, found in rows.items():
        for goal in found:
            table.add_row(name, goal.what, f"{goal.found:.3f}", goal.goal, "" if goal.kept else "MISSED")
    return table


def links(
    chosen: Sequence[int], rounds: int, foreign: Mapping[ForeignPeer, Path], show: Callable[[Table], None]
) -> dict[str, object]:
    """Measure the mixes of these numbers, and with the number after the last how the speed grows. Each is shown at its end.

    foreign: see `measure_group`.
    """
    groups: list[MeasuredGroup] = []
    rows: dict[str, Sequence[Goal]] = {}
    for number in chosen:
        if number == len(MIXES):
            scaled = measure_scale(rounds)
            groups += scaled
            for group in scaled:
                show(measured_table(group, f"{number}, {ALIKE}"))
            rows[f"{number}"] = [scale_goal(*scaled)]
            continue
        mix = MIXES[number]
        groups.append(group := measure_mix(mix, rounds, foreign))
        show(measured_table(group, f"{number}, {mix.name}"))
        rows[f"{number}, {mix.name}"] = list(goals(mix, group))
    rows["all"] = error_goals(groups)
    show(goals_table(rows))
    return {"groups": groups, "goals": rows}
