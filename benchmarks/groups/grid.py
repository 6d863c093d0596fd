"""Every strategy on four networks, over a grid of batches, rates and costs of a message, beside the least seconds there are."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, product
from operator import attrgetter

from rich.table import Table

from benchmarks.groups.networks import NETWORKS
from edge_agent.planner_names import DYNACOMM, FLOW, IBATCH, LAYERWISE, SEQUENTIAL
from edge_agent.planning.schedules import STRATEGIES, Layers, bound_seconds

BATCHES = (8, 16, 32, 64)
GIGABITS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
MESSAGE_SECONDS = (0.001, 0.014)
"""The second is the cost of a message in paper 002 (its Table I)."""
RIVALS = (SEQUENTIAL, LAYERWISE, IBATCH)
LEAST_SAVING, LEAST_FLOW_SAVING = 0.4192, 0.55
"""Parts of the seconds of `sequential` that are to be saved at best: as in paper 002, and our goal for `flow`."""
NEAR_DYNACOMM, NEAR_BOUND = 1.01, 1.05


@dataclass(frozen=True)
class Cell:
    """One network, batch, link and cost of a message. Seconds are of a step."""

    network: str
    batch: int
    gigabits: float
    message_seconds: float
    seconds: Mapping[str, float]
    """By strategy."""
    bound_seconds: float
    """Least that any exchange could take, if only the first message each way cost anything."""
    message_bound_seconds: float
    """The same with the best number of messages of one size."""

    def saved(self, strategy: str) -> float:
        """Part of the seconds of `sequential` that a strategy saves."""
        return 1.0 - self.seconds[strategy] / self.seconds[SEQUENTIAL]

    @property
    def over_bound(self) -> float:
        """Seconds of flow over the bound."""
        return self.seconds[FLOW] / self.bound_seconds

    @property
    def over_message_bound(self) -> float:
        """Seconds of flow over the bound with messages."""
        return self.seconds[FLOW] / self.message_bound_seconds

    @property
    def place(self) -> str:
        """The cell in words."""
        return (
            f"{self.network}, batch {self.batch}, {self.gigabits:g} Gbit/s, {1e3 * self.message_seconds:g} ms a message"
        )


def message_bound_seconds(layers: Layers) -> float:
    """Return the least seconds of a period in which messages have one size.

    As `bound_seconds`, but what is still to be pushed and pulled crosses two links one after the other in n messages each: that
    takes the slower link's seconds, one message of the quicker one, and the cost of n + 1 messages, for the best n.
    """
    pushes, pulls = list(accumulate(layers.push_seconds)), list(accumulate(layers.pull_seconds))
    found, behind = 0.0, 0.0
    for layer in reversed(range(len(layers))):
        behind += layers.forward_seconds[layer] + layers.backward_seconds[layer]
        slow, quick = max(pushes[layer], pulls[layer]), min(pushes[layer], pulls[layer])
        found = max(found, behind + (slow + _least_messages(quick, layers.message_seconds) if slow else 0.0))
    return found


def _least_messages(seconds: float, message_seconds: float) -> float:
    if message_seconds == 0.0:
        return 0.0
    best = max(1, round(math.sqrt(seconds / message_seconds)))
    return min(seconds / count + (count + 1) * message_seconds for count in (max(1, best - 1), best, best + 1))


def grid(
    batches: Sequence[int] = BATCHES,
    gigabits: Sequence[float] = GIGABITS,
    message_seconds: Sequence[float] = MESSAGE_SECONDS,
) -> Iterator[Cell]:
    """Compute every cell."""
    for network, batch, rate, message in product(NETWORKS, batches, gigabits, message_seconds):
        layers = network.layers(batch, rate * 1e9, message)
        seconds = {name: strategy(layers).step_seconds for name, strategy in STRATEGIES.items()}
        bounds = bound_seconds(layers), message_bound_seconds(layers)
        yield Cell(network.name, batch, rate, message, seconds, *bounds)


@dataclass(frozen=True)
class Claim:
    """One goal, and what the cells say of it."""

    claim: str
    found: str
    goal: str
    kept: bool


def claims(cells: list[Cell]) -> list[Claim]:
    """Hold the cells against the goals."""
    rivals = max(cell.seconds[DYNACOMM] / min(cell.seconds[name] for name in RIVALS) for cell in cells)
    best = {name: max(cells, key=partial(Cell.saved, strategy=name)) for name in (DYNACOMM, FLOW)}
    behind = max(cell.seconds[FLOW] / cell.seconds[DYNACOMM] for cell in cells)
    found = [
        Claim("dynacomm over the best rival, at worst", f"{rivals:.6f}", "1", rivals <= 1.0 + 1e-9),
        *(
            Claim(
                f"{name} saves at best",
                f"{cell.saved(name):.2%} ({cell.place})",
                f"{goal:.2%}",
                cell.saved(name) >= goal,
            )
            for (name, cell), goal in zip(best.items(), (LEAST_SAVING, LEAST_FLOW_SAVING), strict=True)
        ),
        Claim("flow over dynacomm, at worst", f"{behind:.4f}", f"{NEAR_DYNACOMM}", behind <= NEAR_DYNACOMM),
    ]
    for words, ratios in (
        ("flow over the bound", [cell.over_bound for cell in cells]),
        ("flow over the bound with messages", [cell.over_message_bound for cell in cells]),
    ):
        worst = max(range(len(cells)), key=ratios.__getitem__)
        over = sum(ratio > NEAR_BOUND for ratio in ratios)
        shown = f"{ratios[worst]:.3f} ({cells[worst].place}); above the goal in {over} of {len(cells)} cells"
        found.append(Claim(f"{words}, at worst", shown, f"{NEAR_BOUND}", not over))
    return found


def claims_table(found: list[Claim]) -> Table:
    """The goals as a table."""
    table = Table("", "found", "goal", "", title="four networks in the simulator", title_justify="left")
    for one in found:
        table.add_row(one.claim, one.found, one.goal, "" if one.kept else "MISSED")
    return table


def saved_table(cells: list[Cell], message_seconds: float) -> Table:
    """Part of the seconds saved by each strategy, at one cost of a message."""
    names = (LAYERWISE, IBATCH, DYNACOMM, FLOW)
    table = Table(
        *("network", "batch", *(f"{gigabits:g} Gbit/s" for gigabits in GIGABITS)),
        title=f"% saved against sequential by {', '.join(names)}; {1e3 * message_seconds:g} ms a message",
        title_justify="left",
    )
    for network, batch in product(NETWORKS, BATCHES):
        row = {
            cell.gigabits: " ".join(f"{100 * cell.saved(name):.0f}" for name in names)
            for cell in cells
            if (cell.network, cell.batch, cell.message_seconds) == (network.name, batch, message_seconds)
        }
        table.add_row(network.name, str(batch), *(row[gigabits] for gigabits in GIGABITS))
    return table


def missed_table(cells: list[Cell]) -> Table:
    """The cells in which flow misses its goal over the bound with messages."""
    table = Table(
        "cell", "flow, s", "over the bound", "with messages", title="where flow misses its goal", title_justify="left"
    )
    for cell in sorted(cells, key=attrgetter("over_message_bound"), reverse=True):
        if cell.over_message_bound > NEAR_BOUND:
            ratios = f"{cell.over_bound:.3f}", f"{cell.over_message_bound:.3f}"
            table.add_row(cell.place, f"{cell.seconds[FLOW]:.3f}", *ratios)
    return table
