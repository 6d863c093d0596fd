"""Seeded runs whose decisions are kept: what an engine decided yesterday, it decides today.

    python -m tests.support.planning.golden_runs        writes tests/support/planning/golden_runs.json again

A run is a list of changes: the second, and what training went on with. Write them again only with a change that is meant to
decide otherwise, and say so in its commit.
"""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.planning.flapping import random_case, random_profile
from benchmarks.rivals.pair import over
from edge_agent.planning import (
    PROBE_SECONDS,
    Engine,
    EngineConfig,
    Layout,
    LinkTrace,
    SearchSpace,
    loads_of,
    simulate,
    stacked,
)
from edge_agent.planning.cost import computing_seconds
from edge_agent.planning.families.pair import listed_pairs
from edge_agent.planning.profile import Profile, parse_profile
from edge_agent.planning.rates import Rates
from tests.support.planning.chain_runs import BITS, ChainTraining
from tests.support.planning.chains import chain_document
from tests.support.planning.engine_cases import between

FILE = Path(__file__).with_suffix(".json")
OSCILLATING_RUNS, WANDERING_RUNS, CHAIN_RUNS = 200, 100, 60
RUN_SECONDS = 600.0
WIDTHS = (2, 4, 8, 32)
Change = list[object]
"""The second, and the numbers of what training went on with."""


def oscillating_run(seed: int) -> list[Change]:
    """Two workers on a link that oscillates, with a round trip, in the simulator."""
    draw = random.Random(10_000 + seed)
    case = random_case(seed)
    link = LinkTrace(case.link.uplink, case.link.downlink, draw.choice((0.0, 0.02, 0.1)))
    space = SearchSpace(WIDTHS, allow_edge_only=draw.random() < 0.7)
    start = _start(draw, case.profile, space)
    engine = Engine(case.profile, space, start, total_steps=draw.choice((1e3, 1e4, 1e5)))
    run = simulate(case.profile, [link], start, RUN_SECONDS, engine, begin=PROBE_SECONDS)
    return [_change(case.profile, switch.seconds, switch.layout) for switch in run.switches]


def wandering_run(seed: int) -> list[Change]:
    """Two workers whose link and devices wander, with noise, pins and moves that fail."""
    draw = random.Random(20_000 + seed)
    profile = random_profile(draw)
    if draw.random() < 0.5:  # the replay is dear
        edge = profile.workers[0]
        serial = edge.replayed.copy()
        for cut in range(1, len(profile) + 1):
            serial[0, cut] *= draw.uniform(0.5, 1.0)
        profile = profile.with_worker(replace(edge, serial=serial))
    space = SearchSpace(WIDTHS)
    start = _start(draw, profile, space)
    engine = Engine(profile, space, start, EngineConfig(), total_steps=20_000)
    mbit, edge_factor, cloud_factor = 10 ** draw.uniform(0, 2), 1.0, 1.0
    changes: list[Change] = []
    steps, busy_until, pending = 0.0, 0.0, None
    for second in range(1, int(RUN_SECONDS)):
        # Everything is drawn in every second, so that the world is the same whatever is decided.
        mbit = min(1000.0, max(0.1, mbit * 10 ** draw.gauss(0.0, 0.03 if draw.random() < 0.97 else 1.0)))
        changes_devices, factors = draw.random() < 0.01, (draw.uniform(0.7, 2.0), draw.uniform(0.7, 2.0))
        pins, pinned = draw.random() < 0.005, draw.choice((None, 0, profile.max_staleness))
        round_trip, pace, fails = draw.choice((0.0, 0.01, 0.05)), draw.uniform(0.8, 1.05), draw.random() < 0.1
        if changes_devices:
            edge_factor, cloud_factor = factors
        if pins:
            engine.constrain(replace(space, staleness=pinned))
        rates = Rates(mbit * 1e6, 2 * mbit * 1e6, round_trip)
        today, at = engine.layout, replace(over(profile, rates), factors=np.array([edge_factor, cloud_factor]))
        if second >= busy_until:
            steps += pace / float(loads_of(profile, [today]).seconds(at)[0])
        computing = computing_seconds(profile, today)
        compute = {"edge": computing.get(0, 0.0) * edge_factor, "trainer": computing.get(1, 0.0) * cloud_factor}
        decision = engine.observe(between(second, int(steps), rates, compute if second % 3 else {}))
        if decision is not None:
            busy_until = second + decision.migration_seconds
            pending = today if fails else decision.layout
        if pending is not None and second >= busy_until:
            engine.note_deployed(float(second), pending)
            changes.append(_change(profile, second, pending))
            pending = None
    return changes


def chain_run(seed: int) -> list[Change]:
    """A chain whose devices, links and pins change."""
    draw = random.Random(30_000 + seed)
    stages = draw.randint(2, 4)
    blocks = draw.randint(stages + 1, 14)
    chain = _chain(draw, blocks, stages)
    cuts = tuple(sorted(draw.sample(range(1, blocks), stages - 1)))
    start = cuts, tuple(draw.choice(BITS) for _ in cuts)
    training = ChainTraining(chain, draw.randint(0, 5), draw.choice((500, 5_000, 100_000)), start)
    training.noise = draw.choice((0.0, 0.03, 0.08))
    links = [chain.rates(*hop) for hop in pairwise(chain.names)]
    training.rates = lambda _seconds: links
    for _ in range(draw.randint(2, 5)):
        training.run(draw.randint(20, 200))
        event = draw.randrange(4)
        if event == 0:
            training.slowness[draw.randrange(stages)] = draw.choice((0.5, 1.0, 2.0, 4.0))
        elif event == 1:
            place = draw.randrange(stages - 1)
            factor = draw.choice((0.1, 0.3, 3.0))
            link = links[place]
            links[place] = replace(link, uplink=link.uplink * factor, downlink=link.downlink * factor)
        elif event == 2:
            held = tuple(sorted(draw.sample(range(1, blocks), stages - 1))) if draw.random() < 0.7 else None
            training.pin(held)
    training.run(draw.randint(60, 300))
    return [
        [round(seconds, 3), str(decision.reason), list(decision.layout.cuts), list(decision.layout.bits)]
        for seconds, decision in training.decisions
    ]


def _chain(draw: random.Random, blocks: int, stages: int) -> Profile:
    document = chain_document(blocks, stages, draw.randrange(10**6))
    document["min_bits"] = None
    for block in document["blocks"]:
        block["bytes"] = draw.choice((1e3, 1e5, 1e6))
    return parse_profile(document, "golden")


def _start(draw: random.Random, profile: Profile, space: SearchSpace) -> Layout:
    found = listed_pairs(profile, space, (0,))
    row = draw.randrange(len(found))
    staleness = draw.choice(space.best_staleness(profile))
    return stacked(profile, (int(found.cuts[row]),), staleness, (int(found.bits[row]),))


def _change(profile: Profile, seconds: float, layout: Layout) -> Change:
    return [
        round(seconds, 3),
        (*layout.cuts, len(profile))[0],
        layout.staleness,
        (*layout.bits, max(WIDTHS))[0],
    ]


KINDS = {
    "oscillating": (oscillating_run, OSCILLATING_RUNS),
    "wandering": (wandering_run, WANDERING_RUNS),
    "chain": (chain_run, CHAIN_RUNS),
}


def main() -> None:
    """Run all, and write what was decided: a run a line."""
    kept = {kind: [run(seed) for seed in range(count)] for kind, (run, count) in KINDS.items()}
    lines = [
        f'"{kind}": [\n' + ",\n".join(json.dumps(changes, separators=(",", ":")) for changes in runs) + "\n]"
        for kind, runs in kept.items()
    ]
    FILE.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    print({kind: (len(runs), sum(map(len, runs))) for kind, runs in kept.items()})


if __name__ == "__main__":
    main()
