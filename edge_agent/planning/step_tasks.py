"""The tasks of a step, from a placement and the costs of its operations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edge_agent.planning.operation_costs import Message, OperationCosts
from edge_agent.planning.rates import Rates
from edge_agent.planning.tasks import Delivery, Direction, SharedSegment, StepTasks, Task
from shared.errors import PlanError
from shared.placement import (
    Backward,
    Crossing,
    Forward,
    Link,
    ModelFacts,
    Order,
    Placement,
    Program,
    Receive,
    Route,
    Send,
    StepPlan,
    Tile,
    segments,
    urgency_of_segment,
)


def step_tasks(
    placement: Placement,
    model: ModelFacts,
    costs: OperationCosts,
    rates: Mapping[Link, Rates],
    *,
    replays: bool = True,
    shared: Iterable[Iterable[Direction]] = (),
) -> StepTasks:
    """Return the tasks of one step of a valid placement. PlanError if one of its links has no rates.

    rates: by link. The uplink is the direction away from the worker that is nearer to the edge.
    replays: True if a stage that waits for its error gradient repeats its forward pass where K > 0, as without stashed weights.
    shared: links on one segment of a network, each as its uplink.

    A source would not wait for all others if nothing there learns. It then settles a step when they have reported that
    they are done with it, so that the steps in flight are bounded there, too.
    """
    plan = StepPlan(placement, model)
    directions = _directions({link: _rates_of(link, rates) for link in plan.links})
    writer = _TaskWriter(plan, costs, directions, replays)
    workers = writer.tasks()
    _add_reports(workers, sorted(plan.unaware), directions)
    return StepTasks(
        {worker: tuple(tasks) for worker, tasks in workers.items()},
        frozenset(source.worker for source in placement.sources),
        plan.ahead,
        tuple(way for links in shared for way in _both_ways(tuple(links), rates)),
    )


def _both_ways(links: Sequence[Direction], rates: Mapping[Link, Rates]) -> Iterator[SharedSegment]:
    """Yield a segment up and down. Links without rates carry nothing."""
    known = _directions(rates)
    for up in (True, False):
        ways = [(near, far) if up else (far, near) for near, far in links]
        of_segment = {way: known[way][0] for way in ways if way in known}
        if of_segment:
            yield SharedSegment(of_segment, max(of_segment.values()))


def _rates_of(link: Link, rates: Mapping[Link, Rates]) -> Rates:
    """Return the measurements between two workers, whichever of them dials. Raises PlanError."""
    if link in rates:
        return rates[link]
    if (turned := rates.get(Link(link.listener, link.dialer))) is None:
        raise PlanError(f"the link from {link.dialer!r} to {link.listener!r} has no rates; measure them first")
    return turned.turned()


def _directions(rates: Mapping[Link, Rates]) -> dict[Direction, tuple[float, float]]:
    """Return the bits per second, and the seconds that a bit is on the way."""
    directions: dict[Direction, tuple[float, float]] = {}
    for link, both in rates.items():
        travel_seconds = both.round_trip_seconds / 2
        directions[link.dialer, link.listener] = both.uplink, travel_seconds
        directions[link.listener, link.dialer] = both.downlink, travel_seconds
    return directions


@dataclass(frozen=True)
class _TaskWriter:
    plan: StepPlan
    costs: OperationCosts
    directions: Mapping[Direction, tuple[float, float]]
    replays: bool

    def tasks(self) -> dict[str, list[Task]]:
        programs = {worker: segments(self.plan.program(worker)) for worker in self.plan.placement.workers}
        divided = {
            worker: (*self._leading(sent_first), *rest)
            for worker, (sent_first, rest) in programs.items()
            if sent_first or rest
        }
        awaited = {
            crossing: (task, place)
            for whole in divided.values()
            for task, segment in enumerate(whole)
            for place, crossing in enumerate(_received(segment))
        }
        return {
            worker: self._in_order(
                worker, [self._task(worker, segment, awaited) for segment in whole], *programs[worker]
            )
            for worker, whole in divided.items()
        }

    def _leading(self, sent_first: Program) -> tuple[Program, ...]:
        """Return what a worker with samples does before it computes: the sends that leave ahead, if any, and the others,
        with which the step begins."""
        plan = self.plan
        ahead = tuple(one for one in sent_first if isinstance(one, Send) and one.crossing in plan.sent_ahead)
        if not ahead or not plan.samples_ahead:
            return (sent_first,) if sent_first else ()
        return ahead, tuple(one for one in sent_first if one not in ahead)

    def _in_order(self, worker: str, tasks: list[Task], sent_first: Program, rest: tuple[Program, ...]) -> list[Task]:
        """The tasks of a worker with those that each waits for."""
        order, shift = Order.of(rest), len(tasks) - len(rest)
        found = tasks[:shift]
        for task, segment, after, behind in zip(tasks[shift:], rest, order.after, order.behind, strict=True):
            begun = (shift - 1,) if sent_first and not after else ()
            found.append(
                replace(
                    task,
                    after=(*begun, *(one + shift for one in after)),
                    behind=tuple(one + shift for one in behind),
                    urgency=urgency_of_segment(segment),
                )
            )
        if worker in self.plan.waited:
            cleared = self.plan.waited[worker] or order.ends
            behind = tuple(one + shift for one in cleared) or (shift - 1,)
            for leading in range(shift):
                early = self.plan.samples_ahead if leading < shift - 1 else 0
                found[leading] = replace(
                    found[leading], after=tuple(range(leading)), behind=behind, early=early, begins=True
                )
        return found

    def _task(self, worker: str, segment: Program, awaited: Mapping[Crossing, tuple[int, int]]) -> Task:
        seconds = tail_seconds = 0.0
        deliveries = []
        for operation in segment:
            match operation:
                case Receive(crossing):
                    message = self._message(crossing)
                    seconds += message.receive_seconds
                    tail_seconds += message.receive_tail_seconds
                case Send(crossing):
                    message = self._message(crossing)
                    seconds += message.send_seconds
                    tail_seconds += message.send_tail_seconds
                    direction = crossing.sender, crossing.receiver
                    bits_per_second, travel_seconds = self.directions[direction]
                    carry_seconds = message.bits / bits_per_second
                    deliveries.append(
                        Delivery(
                            direction,
                            crossing,
                            *awaited[crossing],
                            seconds,
                            message.bits,
                            carry_seconds,
                            travel_seconds,
                        )
                    )
                case _:
                    seconds += self.costs.seconds(worker, operation)
                    if isinstance(operation, Backward) and self._replays(operation.stage):
                        seconds += self.costs.seconds(worker, Forward(operation.stage))
        return Task(len(_received(segment)), seconds, tail_seconds, tuple(deliveries))

    def _replays(self, stage: Tile) -> bool:
        """Tell whether the weights may have changed since its forward pass. After the last block the backward pass
        follows at once."""
        placement = self.plan.placement
        return self.replays and placement.staleness > 0 and stage.stop < placement.blocks

    def _message(self, crossing: Crossing) -> Message:
        route = Route(crossing.sender, crossing.receiver, crossing.cargo)
        return self.costs.message(crossing, self.plan.placement.codecs.get(route))


def _add_reports(
    workers: Mapping[str, list[Task]], sources: Sequence[str], directions: Mapping[Direction, tuple[float, float]]
) -> None:
    """Let each of these sources wait, at its end of a step, until every other worker is at its own end."""
    ends = {worker: len(tasks) - 1 for worker, tasks in workers.items()}
    for source in sources:
        others = [worker for worker in workers if worker != source]
        for place, worker in enumerate(others):
            end = workers[worker][ends[worker]]
            # A worker without a link to the source reports by the session's links, which are not measured.
            _, travel_seconds = directions.get((worker, source), (0.0, 0.0))
            report = Delivery((worker, source), None, ends[source] + 1, place, end.seconds, 0.0, 0.0, travel_seconds)
            workers[worker][ends[worker]] = replace(end, deliveries=(*end.deliveries, report))
        workers[source].append(Task(len(others), 0.0, 0.0, (), after=(ends[source],)))
        for leading in range(2 if workers[source][0].early else 1):
            workers[source][leading] = replace(workers[source][leading], behind=(ends[source] + 1,), begins=True)


def _received(segment: Program) -> list[Crossing]:
    return [operation.crossing for operation in segment if isinstance(operation, Receive)]
