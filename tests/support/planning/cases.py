"""Profiles, links and costs of placements for the tests of planning: strategies, and cases whose numbers are easy to follow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from benchmarks.rivals.pair import over
from edge_agent.planning import (
    SCHEMA,
    BlockCosts,
    BlockSeconds,
    CodecCosts,
    Conditions,
    Layout,
    Linear,
    Loads,
    Message,
    Profile,
    ProfiledBlock,
    Question,
    Rates,
    SearchSpace,
    StepTasks,
    loads_of,
    pair_profile,
    stacked,
    step_tasks,
)
from shared.placement import (
    BlockFacts,
    Cargo,
    Crossing,
    Forward,
    ModelFacts,
    Operation,
    StepPlan,
)

MBIT = 1e6


def small_profile(**changes) -> Profile:
    """Four blocks; at 8 mbit each way a byte takes a microsecond. Cut 0 was not measured, edge-only was."""
    fields = {
        "model": "small",
        "batch_size": 8,
        "blocks": tuple(ProfiledBlock(f"b{i}", 1e6 * (i + 1)) for i in range(4)),
        "feature_bytes": (None, 4e6, 2e6, 1e6, None),
        "gradient_bytes": (None, 4e6, 2e6, 1e6, None),
        "edge_seconds": (None, 1.0, 2.0, 3.0, 5.0),
        "cloud_seconds": (None, 0.4, 0.3, 0.2, 0.0),
        "encode": Linear(0.125, 1e-7),
        "min_bits": None,
        "max_staleness": 3,
    }
    return pair_profile(**(fields | changes))


def pair(cut: int, staleness: int, bits: int, profile: Profile | None = None) -> Layout:
    """Two workers on one cut, of a profile of four blocks where none is given."""
    return stacked(profile or small_profile(), (cut,), staleness, (bits,))


def measured(profile: Profile, cut: int, *, serial: bool = False) -> tuple[float | None, float | None]:
    """Return the times of the edge and of the trainer of a pair at a cut; None where that was not measured."""
    edge, trainer = profile.workers
    numbers = float((edge.at_once if serial else edge.replayed)[0, cut]), float(trainer.replayed[cut, len(profile)])
    near, far = (None if math.isnan(number) else number for number in numbers)
    return near, far


PAIR_FILE = {
    "schema": SCHEMA,
    "model": "small",
    "batch_size": 8,
    "blocks": [{"name": f"b{i}", "bytes": 1e6 * (i + 1)} for i in range(4)],
    "feature_bytes": [None, 4e6, 2e6, 1e6, None],
    "gradient_bytes": [None, 4e6, 2e6, 1e6, None],
    "workers": [
        {"name": "edge", "replayed": [[0, 1, 1.0], [0, 2, 2.0], [0, 3, 3.0], [0, 4, 5.0]]},
        {"name": "trainer", "replayed": [[1, 4, 0.4], [2, 4, 0.3], [3, 4, 0.2]]},
    ],
    "links": [{"between": ["edge", "trainer"]}],
    "encode": [0.125, 1e-7],
    "max_staleness": 3,
}
"""`small_profile` as others may have written it."""

AT_8_MBIT = Rates(8 * MBIT, 8 * MBIT)

seconds = st.floats(0.001, 10.0)
sizes = st.floats(1.0, 1e8)
rates = st.builds(Rates, st.floats(1e4, 1e9), st.floats(1e4, 1e9), st.just(0.0) | st.floats(0.0, 2.0))


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    """Mostly measured, sometimes not."""
    return st.one_of(strategy, strategy, strategy, st.none())


@st.composite
def profiles(draw, max_blocks: int = 8, complete: bool = False) -> Profile:
    """Any profile that loads; with `complete`, everything from cut 1 on was measured."""
    count = draw(st.integers(2, max_blocks))
    entry = (lambda strategy: strategy) if complete else maybe

    def column(strategy, first, last):
        return (draw(maybe(first)), *(draw(entry(strategy)) for _ in range(count - 1)), last)

    edge = column(seconds, seconds, draw(seconds))
    return pair_profile(
        model="any",
        batch_size=draw(st.integers(1, 512)),
        blocks=tuple(
            ProfiledBlock(f"b{i}", draw(st.floats(0.0, 1e8)), draw(st.none() | st.floats(0.0, 1e8)))
            for i in range(count)
        ),
        feature_bytes=column(sizes, sizes, None),
        gradient_bytes=column(sizes, sizes, None),
        edge_seconds=edge,
        cloud_seconds=column(seconds, seconds, 0.0),
        encode=Linear(draw(st.floats(0.0, 1.0)), draw(st.floats(0.0, 1e-6)))
        if complete
        else draw(maybe(st.builds(Linear, st.floats(0.0, 1e-6), st.floats(0.0, 1.0)))),
        min_bits=draw(st.none() | st.tuples(*[entry(st.sampled_from((2, 4, 8, 32)))] * (count + 1))),
        max_staleness=draw(st.integers(0, 6)),
        serial_edge_seconds=draw(st.none() | st.tuples(*[maybe(seconds)] * (count + 1))),
        overhead=draw(st.builds(Linear, st.just(0.0) | st.floats(0.0, 1e-6), st.just(0.0) | seconds)),
        serial_overhead_seconds=draw(st.just(0.0) | seconds),
        round_trip_seconds=draw(st.none() | st.floats(0.0, 2.0)),
    )


@dataclass(frozen=True)
class ProfileCosts:
    """The costs of a placement by a profile of two workers: all that a side computes is in its forward."""

    profile: Profile
    layout: Layout
    edge: str

    def seconds(self, worker: str, operation: Operation) -> float:
        return float(self._loads.work[0 if worker == self.edge else 1][0]) if isinstance(operation, Forward) else 0.0

    def message(self, crossing: Crossing, codec: str | None) -> Message:  # noqa: ARG002 - the layout has the width
        if crossing.cargo is Cargo.LABEL:
            return Message(0.0)
        if crossing.cargo is Cargo.ERROR_GRADIENT:
            return Message(float(self._loads.bits[1, 0][0]))
        awaited = float(self._loads.paths.waited[0])
        tail_seconds = (float(self._loads.host[0][0]) if 0 in self._loads.host else 0.0) - awaited
        return Message(float(self._loads.bits[0, 1][0]), awaited, tail_seconds)

    @property
    def _loads(self) -> Loads:
        return loads_of(self.profile, [self.layout])


def asked(
    profile: Profile, link: Rates, space: SearchSpace | None = None, *horizon: int, **start: int
) -> tuple[Question, Conditions]:
    """Return what a planner of two workers is asked over a link. horizon, start: `Question`'s `horizon_steps`, `from_cut`."""
    return Question(profile, space or SearchSpace(), *horizon, **start), over(profile, link)


def edge_and_trainer(profile: Profile, layout: Layout, link: Rates) -> StepTasks:
    """A step of the two workers that a profile was measured on."""
    placement = layout.placement(profile.names)
    model = ModelFacts(tuple(BlockFacts(block.name) for block in profile.blocks))
    costs = ProfileCosts(profile, layout, "edge")
    return step_tasks(placement, model, costs, dict.fromkeys(StepPlan(placement, model).links, link), replays=False)


@st.composite
def block_costs(draw, model: ModelFacts, workers: Sequence[str]) -> BlockCosts:
    """Any costs of a model; some things cost nothing."""
    count = len(model.blocks)
    some = st.just(0.0) | st.floats(0.001, 1.0)
    linear = st.builds(Linear, some, some)
    block = st.builds(BlockSeconds, linear, linear, some)
    sizes = st.just(0.0) | st.floats(1.0, 1e6)
    return BlockCosts(
        {worker: tuple(draw(block) for _ in range(count)) for worker in workers},
        tuple(draw(sizes) for _ in range(count + 1)),
        tuple(draw(sizes) for _ in range(count)),
        draw(sizes),
        {"half": CodecCosts(16, draw(linear), draw(linear))},
        {worker: draw(linear) for worker in workers},
    )
