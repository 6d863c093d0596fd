"""The figures of paper 004 by the models, at stated speeds: 5 Mbit/s to the edge server, 1.5 to 5 beyond, inputs permitted.

Each cell has the seconds of a step in the simulator. In phases, as the paper counts, nothing goes on beside anything else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from benchmarks.tiers.networks import ALEXNET, LENET, Network, Setting, profile_of
from benchmarks.tiers.phases import phases_of
from edge_agent.planner_names import ALL_CLOUD, ALL_DEVICE, ALL_EDGE, BEST, HIERTRAIN, TIER_PLANNER_NAMES
from edge_agent.planning import Question, SearchSpace, planned
from edge_agent.planning.families.tiers.divisions import Division

NEAR_MBIT = 5.0
FAR_MBIT = (1.5, 2.0, 3.0, 5.0)
WORKERS = ("edge", "near", "gpu")
SPEEDS: Mapping[str, tuple[Network, tuple[float, float, float], tuple[float, float]]] = {
    "lenet": (LENET, (0.4e9, 4e9, 40e9), (6.9, 1.7)),
    "alexnet": (ALEXNET, (8e9, 12e9, 500e9), (4.5, 2.3)),
    "lenet, slow": (LENET, (0.3e9, 3e9, 30e9), (6.9, 1.7)),
    "alexnet, slow": (ALEXNET, (0.3e9, 3e9, 30e9), (4.5, 2.3)),
}
"""Networks with the operations a second of the device, the edge server and the cloud; and the paper's largest gains over the
cloud alone and over the edge server alone."""
MOST_CORES = 4
KEPT = "best, inputs stay"


@dataclass(frozen=True)
class Row:
    """The seconds of a step of each planner at one rate beyond the edge server."""

    network: str
    far_mbit: float
    seconds: Mapping[str, float]
    phase_seconds: Mapping[str, float]
    """Seconds by Eq. 12."""
    best: str
    """The best division in words."""


def question_of(network: Network, speeds: Sequence[float], far_mbit: float, inputs_to: frozenset[str]) -> Question:
    """Return the question of a setting."""
    setting = Setting(dict(zip(WORKERS, speeds, strict=True)), NEAR_MBIT, far_mbit)
    space = SearchSpace((8, 32), 0, inputs_to=inputs_to)
    return Question(profile_of(network, setting), space)


def rows_of(name: str) -> Iterator[Row]:
    """Yield a row for each rate."""
    network, speeds, _ = SPEEDS[name]
    for far_mbit in FAR_MBIT:
        question = question_of(network, speeds, far_mbit, frozenset(WORKERS[1:]))
        found = {each: planned(question, each) for each in TIER_PLANNER_NAMES}
        seconds = {each: plan.seconds_per_step for each, plan in found.items()}
        kept = question_of(network, speeds, far_mbit, frozenset())
        seconds[KEPT] = planned(kept, BEST).seconds_per_step
        phased = {each: phases_of(question, plan.layout) for each, plan in found.items()}
        phases = {each: both[1] for each, both in phased.items() if both is not None}
        best = phased[BEST]
        assert best is not None
        yield Row(name, far_mbit, seconds, phases, described(best[0], question.profile.batch_size))


def described(division: Division, batch_size: int) -> str:
    """Return a division in few words."""
    shares = division.samples(batch_size)
    roles = {role: worker for role, worker in division.roles.items() if role == "o" or shares[role]}
    each = [
        f"{role} {worker} {shares[role]}" + ("" if role == "o" else f" to {end}")
        for (role, worker), end in zip(
            roles.items(), _ends(roles, division.short_blocks, division.long_blocks), strict=True
        )
    ]
    return ", ".join([*([f"edge [0, {division.before})"] if division.before else []), *each])


def _ends(roles: Mapping[str, str], short_blocks: int, long_blocks: int) -> list[int]:
    ends = {"o": 0, "s": short_blocks, "l": long_blocks}
    return [ends[role] for role in roles]


def table_of(name: str, rows: Sequence[Row]) -> Table:
    """Tabulate the seconds of one network."""
    network, speeds, _ = SPEEDS[name]
    stated = ", ".join(f"{worker} {speed / 1e9:g}" for worker, speed in zip(WORKERS, speeds, strict=True))
    columns = [BEST, KEPT, *TIER_PLANNER_NAMES[1:]]
    table = Table(
        "Mbit/s",
        *(f"{column}, s" for column in columns),
        "hiertrain in phases, s",
        title=f"{network.name}, batches of 128; 10^9 operations a second: {stated}",
    )
    for row in rows:
        figures = (f"{row.seconds[column]:.2f}" for column in columns)
        table.add_row(f"{row.far_mbit:g}", *figures, f"{row.phase_seconds[HIERTRAIN]:.2f}")
    return table


@dataclass(frozen=True)
class Gain:
    """The largest gains of a network over the cloud alone and the edge server alone."""

    network: str
    simulated: tuple[float, float]
    phases: tuple[float, float]
    """Gains of `hiertrain`, everything in phases."""
    over_device: tuple[float, float]
    """The least and the largest gain of the best over the device alone."""
    paper: tuple[float, float]


def gain_of(name: str, rows: Sequence[Row]) -> Gain:
    """Return the largest gains over all rates."""

    def most(of: str, over: str, phases: bool) -> float:
        tables = [row.phase_seconds if phases else row.seconds for row in rows]
        return max(each[over] / each[of] for each in tables)

    over_device = [row.seconds[ALL_DEVICE] / row.seconds[BEST] for row in rows]
    return Gain(
        name,
        (most(BEST, ALL_CLOUD, phases=False), most(BEST, ALL_EDGE, phases=False)),
        (most(HIERTRAIN, ALL_CLOUD, phases=True), most(HIERTRAIN, ALL_EDGE, phases=True)),
        (min(over_device), max(over_device)),
        SPEEDS[name][2],
    )


def gains_table(gains: Sequence[Gain]) -> Table:
    """Tabulate the largest gains."""
    table = Table(
        "network",
        *(f"{how} over {what}" for how in ("best", "hiertrain in phases", "paper") for what in (ALL_CLOUD, ALL_EDGE)),
        "best over all-device",
        title="largest gains",
    )
    for gain in gains:
        figures = (*gain.simulated, *gain.phases, *gain.paper)
        least, most = gain.over_device
        table.add_row(gain.network, *(f"{figure:.2f}" for figure in figures), f"{least:.2f} to {most:.2f}")
    return table


def cores() -> dict[float, list[float]]:
    """Return the seconds of the best division of AlexNet with 1 to 4 cores at the edge server, by rate (Fig. 11)."""
    network, (edge, near, gpu), _ = SPEEDS["alexnet"]
    return {
        far_mbit: [
            planned(
                question_of(network, (edge, near * count, gpu), far_mbit, frozenset(WORKERS[1:])), BEST
            ).seconds_per_step
            for count in range(1, MOST_CORES + 1)
        ]
        for far_mbit in FAR_MBIT
    }


def cores_table(found: Mapping[float, Sequence[float]]) -> Table:
    """Tabulate the seconds by cores."""
    table = Table(
        "Mbit/s",
        *(f"{count} cores, s" for count in range(1, MOST_CORES + 1)),
        title="AlexNet, cores at the edge server",
    )
    for far_mbit, seconds in found.items():
        table.add_row(f"{far_mbit:g}", *(f"{each:.2f}" for each in seconds))
    return table
