"""The layers that a member measures: each second of its steps counts once, and a block without bytes to the one before."""

from dataclasses import replace

import pytest

from edge_agent.adaptation.rescheduling import TELLING_STEPS, MeasuredLayers, SegmentTimes, ends_of, exchange_bounds
from edge_agent.experiment.exchanging import exchange_by
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning.schedules import STRATEGIES
from edge_agent.training.statistics import Statistics
from shared.events import Events
from shared.events.worker import Computed
from shared.placement import Exchange, PlacementPlan, segments
from tests.support.experiments import flags
from tests.support.running import edge_config

UP, DOWN, TRIP = 8e6, 4e6, 0.02


def member(*more):
    """Return what measures the layers of a member, its experiment, events and figures, and the segments of its steps."""
    experiment = Experiment(
        edge_config(
            *flags("mlp", "adamw"),
            'group={name="line", schedule="dynacomm"}',
            'privacy.gradients_to=["trainer"]',
            "trainer.address=127.0.0.1:1",
            'deployment.codec="raw"',
            *more,
        )
    )
    plan = PlacementPlan.of(experiment.placement, experiment.facts)
    program, events, statistics = plan.training.program("edge"), Events(), Statistics(10)
    measured = MeasuredLayers(experiment, program, SegmentTimes(events), statistics)
    return measured, experiment, events, statistics, segments(program)[1]


def show_link(statistics):
    statistics.link_rates = {("edge", "trainer"): UP, ("trainer", "edge"): DOWN}
    statistics.link_trips = {("edge", "trainer"): TRIP}


def do_steps(events, program, steps):
    """Have each segment take as many seconds as its number, from 1 on, and one step in the middle a thousand times as long."""
    for step in range(steps):
        for number in range(len(program)):
            seconds = (number + 1.0) * (1000.0 if step == 1 else 1.0)
            events.emit(Computed(step, number, "forward", 0.0, seconds))


@pytest.mark.parametrize("more", [[], ["deployment.cut=2"]])
def test_each_second_of_a_step_counts_once(more):
    measured, experiment, events, statistics, program = member(*more)
    show_link(statistics)
    do_steps(events, program, TELLING_STEPS)
    layers = measured.now()
    computing = [
        number + 1.0 for number, segment in enumerate(program) if any(hasattr(one, "stage") for one in segment)
    ]
    assert sum(layers.forward_seconds) + sum(layers.backward_seconds) == pytest.approx(sum(computing))
    sizes = [sum(value.nbytes for value in block.named_parameters().values()) for block in experiment.chain.blocks]
    assert sum(layers.bytes) == sum(sizes[: measured.ends[-1]])
    assert layers.push_seconds == pytest.approx([8 * size / UP for size in layers.bytes])
    assert layers.pull_seconds == pytest.approx([8 * size / DOWN for size in layers.bytes])
    assert layers.message_seconds == TRIP


def test_codecs_leave_fewer_bytes_each_way():
    measured, _, events, statistics, program = member('group.codec="uniform8"', 'group.weights_codec="fp16"')
    show_link(statistics)
    do_steps(events, program, TELLING_STEPS)
    layers = measured.now()
    assert layers.push_seconds == pytest.approx([8 * size / UP / 4 for size in layers.bytes], rel=0.01)
    assert layers.pull_seconds == pytest.approx([8 * size / DOWN / 2 for size in layers.bytes], rel=0.01)


def test_nothing_is_known_before_there_are_enough_steps_and_rates():
    measured, _, events, statistics, program = member()
    do_steps(events, program, TELLING_STEPS)
    assert measured.now() is None, "no link was measured"
    show_link(statistics)
    assert measured.now() is not None
    statistics.link_trips = {}
    assert measured.now() is None
    measured, _, events, statistics, program = member()
    show_link(statistics)
    do_steps(events, program, TELLING_STEPS - 1)
    assert measured.now() is None, "a step is missing"


def test_blocks_without_parameters_belong_to_the_one_before():
    assert ends_of([0, 2, 3], 5) == (0, 2, 3, 5)
    assert ends_of([1, 2], 3) == (0, 2, 3)
    assert ends_of([1], 3) == (0, 3)
    assert ends_of([], 2) == ()


@pytest.mark.parametrize("ends", [(0, 1, 2, 3, 4), (0, 2, 3), (0, 4)])
def test_the_partition_of_a_placement_is_that_of_its_layers(ends):
    _, experiment, *_ = member()
    each = tuple((block, block + 1) for block in range(4))
    by_block = replace(experiment.placement, exchange=Exchange(tuple(reversed(each)), each, barrier=True))
    layerwise = tuple(range(len(ends)))
    assert exchange_bounds(by_block, ends) == (layerwise, layerwise)


def test_the_blocks_behind_a_cut_travel_together():
    measured, experiment, events, statistics, program = member("deployment.cut=2")
    show_link(statistics)
    do_steps(events, program, TELLING_STEPS)
    exchange = exchange_by(STRATEGIES["layerwise"](measured.now()), measured.ends, 4)
    assert exchange == Exchange(((2, 4), (1, 2), (0, 1)), ((0, 1), (1, 2), (2, 4)), barrier=True)
    experiment.check(replace(experiment.placement, exchange=exchange))
