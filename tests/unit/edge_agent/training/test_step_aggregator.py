"""The reports of all workers put together: the end of a stretch shows, also where a worker repeats steps."""

import asyncio
from types import SimpleNamespace

from edge_agent.training.step_aggregator import StepAggregator
from shared.events import Events
from shared.placement import AGENT, StepPlan, Window
from shared.runtime.reports import ReportRelay
from shared.wire.isthmus.v1.link_pb2 import StepDone
from tests.unit.shared.runtime.test_reports_heard import BLOCKS, MODEL_FACTS_OF_A_STILL_END, placed

STEPS = 3


async def test_a_stretch_ends_when_a_worker_that_has_begun_again_has_repeated_its_steps():
    plan = StepPlan(placed((AGENT, 0, BLOCKS - 1), ("near", BLOCKS - 1, BLOCKS)), MODEL_FACTS_OF_A_STILL_END)
    window, events = Window(plan, AGENT), Events()
    relay = ReportRelay(window, events.emit, asyncio.Event())
    worker = SimpleNamespace(executor=SimpleNamespace(window=window))
    aggregator = StepAggregator(events, worker, lambda _step, _loss: None)
    for step in range(STEPS):
        window.begin(step)
        window.answer(step)
        window.end(step)
        relay.tell(StepDone(worker=AGENT, step=step))
        relay.hear(StepDone(worker="near", step=step, samples=8, loss=1.0), "near")
    assert aggregator.reaching(STEPS).done()
    window.unhear("near", 1)
    reached = aggregator.reaching(STEPS)
    assert not reached.done()
    for step in range(1, STEPS):
        assert not reached.done()
        relay.hear(StepDone(worker="near", step=step, samples=8, loss=1.0), "near")
    assert reached.done()
