"""The figures of paper 002 in the simulator: Fig. 5 to 9 and 11.

The paper says neither the rate that a worker had of the servers' links nor the seconds of a layer. One rate is fitted for each
network, to what dynacomm saved of a step at both batch sizes (V, B); all else is computed from the speeds of Table II.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from rich.table import Table

from benchmarks.groups.networks import NETWORKS, Network
from edge_agent.planner_names import DYNACOMM, FLOW, IBATCH, LAYERWISE, SEQUENTIAL, STRATEGY_NAMES
from edge_agent.planning.schedules import STRATEGIES, ExchangeSchedule

MESSAGE_SECONDS = 0.014
WORKERS = 8
WHOLE, FORWARD, BACKWARD = "step", "forward", "backward"
SAVED: Mapping[tuple[str, int], Mapping[tuple[str, str], float]] = {
    ("VGG-19", 32): {
        (WHOLE, DYNACOMM): 41.10,
        (FORWARD, DYNACOMM): 42.86,
        (FORWARD, IBATCH): 42.79,
        (FORWARD, LAYERWISE): 40.54,
        (BACKWARD, DYNACOMM): 39.35,
        (BACKWARD, IBATCH): 39.35,
        (BACKWARD, LAYERWISE): 39.35,
    },
    ("VGG-19", 16): {(WHOLE, DYNACOMM): 35.05, (FORWARD, DYNACOMM): 27.26, (BACKWARD, DYNACOMM): 42.83},
    ("GoogLeNet", 32): {(WHOLE, DYNACOMM): 30.19},
    ("GoogLeNet", 16): {(WHOLE, DYNACOMM): 39.22, (FORWARD, DYNACOMM): 38.64, (BACKWARD, DYNACOMM): 39.80},
    ("Inception-v4", 32): {
        (WHOLE, DYNACOMM): 33.78,
        (FORWARD, DYNACOMM): 39.99,
        (FORWARD, IBATCH): 24.22,
        (FORWARD, LAYERWISE): 35.25,
        (BACKWARD, DYNACOMM): 27.55,
    },
    ("Inception-v4", 16): {(WHOLE, DYNACOMM): 41.65, (FORWARD, DYNACOMM): 40.37, (BACKWARD, DYNACOMM): 42.93},
    ("ResNet-152", 32): {
        (WHOLE, DYNACOMM): 37.06,
        (FORWARD, DYNACOMM): 43.84,
        (FORWARD, IBATCH): 30.02,
        (FORWARD, LAYERWISE): 10.56,
        (BACKWARD, DYNACOMM): 30.29,
    },
    ("ResNet-152", 16): {(WHOLE, DYNACOMM): 41.92, (FORWARD, DYNACOMM): 37.42, (BACKWARD, DYNACOMM): 46.42},
}
"""Percent saved against sequential, by network and batch, then by part of the step and strategy, from the text of V, B."""
SPEED_UPS = {DYNACOMM: 7.2, IBATCH: 6.2, LAYERWISE: 5.4}
"""Times that eight workers are as fast as one (Fig. 11)."""
RATES = np.geomspace(1e8, 1e10, 201)
BATCHES = (8, 16, 24, 32, 40, 48, 56, 64)
SHARES = (0.1, 0.3, 0.5, 0.7, 1.0)
"""Rates of Fig. 9 over that of the other figures, for which the paper says 10 Gbit/s."""
SCALED = next(network for network in NETWORKS if network.name == "ResNet-152")


@dataclass(frozen=True)
class Saving:
    """One bar of Fig. 5 to 8. Percent."""

    network: str
    batch: int
    part: str
    strategy: str
    ours: float
    papers: float


def parts(schedule: ExchangeSchedule) -> dict[str, float]:
    """Seconds of a step and of its halves."""
    return {
        WHOLE: schedule.step_seconds,
        FORWARD: schedule.forward_seconds,
        BACKWARD: schedule.backward_seconds,
    }


def saved(network: Network, batch: int, bits_per_second: float, strategy: str) -> dict[str, float]:
    """Percent saved against sequential, by part of the step."""
    layers = network.layers(batch, bits_per_second, MESSAGE_SECONDS)
    ours, before = parts(STRATEGIES[strategy](layers)), parts(STRATEGIES[SEQUENTIAL](layers))
    return {part: 100 * (1 - seconds / before[part]) for part, seconds in ours.items()}


@cache
def fitted_rate(network: Network) -> float:
    """Bits per second at which dynacomm saves most nearly what it saved in the paper at batches of 32 and 16."""

    def wrong(rate: float) -> float:
        return sum(
            (saved(network, batch, rate, DYNACOMM)[WHOLE] - SAVED[network.name, batch][WHOLE, DYNACOMM]) ** 2
            for batch in (32, 16)
        )

    return float(min(RATES, key=wrong))


def savings() -> list[Saving]:
    """Every bar of Fig. 5 to 8 whose height the paper tells."""
    by_name = {network.name: network for network in NETWORKS}
    return [
        Saving(name, batch, part, strategy, saved(network, batch, fitted_rate(network), strategy)[part], papers)
        for (name, batch), told in SAVED.items()
        for network in (by_name[name],)
        for (part, strategy), papers in told.items()
    ]


def savings_table(rows: list[Saving]) -> Table:
    """Fig. 5 to 8 beside ours."""
    rates = ", ".join(f"{network.name} {fitted_rate(network) / 1e9:.2f}" for network in NETWORKS)
    table = Table(
        *("network", "batch", "of the", "strategy", "ours", "paper"),
        title=f"Fig. 5 to 8, % saved against sequential; fitted Gbit/s: {rates}",
        title_justify="left",
    )
    for row in rows:
        table.add_row(row.network, str(row.batch), row.part, row.strategy, f"{row.ours:.1f}", f"{row.papers:.1f}")
    return table


def sensitivity() -> list[tuple[str, dict[str, float]]]:
    """Fig. 9: percent saved of ResNet-152's step, by batch, and by rate at a batch of 32."""
    rate = fitted_rate(SCALED)
    cases = [(f"batch {batch}", batch, 1.0) for batch in BATCHES]
    cases += [(f"{10 * share:g} of 10 Gbit/s", 32, share) for share in SHARES]
    return [
        (words, {name: saved(SCALED, batch, share * rate, name)[WHOLE] for name in (LAYERWISE, IBATCH, DYNACOMM, FLOW)})
        for words, batch, share in cases
    ]


def sensitivity_table(rows: list[tuple[str, dict[str, float]]]) -> Table:
    """Fig. 9."""
    table = Table("", *rows[0][1], title="Fig. 9, ResNet-152, % saved against sequential", title_justify="left")
    for words, percents in rows:
        table.add_row(words, *(f"{percent:.1f}" for percent in percents.values()))
    return table


def speed_ups() -> list[tuple[int, dict[str, float]]]:
    """Fig. 11: so many times the speed of one member, who has all of the servers' links that eight share at the fitted rate."""
    alone = SCALED.layers(32, WORKERS * fitted_rate(SCALED), MESSAGE_SECONDS)
    return [
        (
            members,
            {
                name: members
                * STRATEGIES[name](alone).step_seconds
                / STRATEGIES[name](alone.among(members)).step_seconds
                for name in STRATEGY_NAMES
            },
        )
        for members in (1, 2, 4, WORKERS)
    ]


def speed_ups_table(rows: list[tuple[int, dict[str, float]]]) -> Table:
    """Fig. 11; the last line has what the paper tells of eight workers."""
    table = Table(
        "members", *STRATEGY_NAMES, title="Fig. 11, ResNet-152, batch 32, times one member", title_justify="left"
    )
    for members, times in rows:
        table.add_row(str(members), *(f"{time:.2f}" for time in times.values()))
    told = (f"{SPEED_UPS[name]:.1f}" if name in SPEED_UPS else "" for name in STRATEGY_NAMES)
    table.add_row(f"{WORKERS}, paper", *told)
    return table
