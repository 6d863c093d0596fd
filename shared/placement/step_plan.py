"""All that follows from a placement of a model for one step, worked out once, in time and memory that grow with its parts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shared.placement.derived import Crossing, answers, first_worker, flow_of, kept_stage, links_of, steps_ahead
from shared.placement.facts import ModelFacts
from shared.placement.norms import norm_crossings, scale_crossings, scaling_worker
from shared.placement.programs import Forward, Program, Receive, Send, Update, programs_of
from shared.placement.reports import report_parents, reports_heard, stateless_workers
from shared.placement.segments import Waiting, segments
from shared.placement.tiles import Cargo, Placement


class StepPlan:
    """One step of training, or of an evaluation, of all workers of a valid placement. Frozen once it is made.

    To make it takes a second for the largest placements (`check`), so it is made beside the event loop, and handed to all that
    need anything of it.
    """

    def __init__(self, placement: Placement, model: ModelFacts, *, training: bool = True) -> None:
        """training: False for an evaluation, which goes forward to the loss and no further."""
        self.placement = placement
        self.model = model
        self.training = training
        flow = flow_of(placement, model, training=training)
        self.links = links_of(placement, flow)
        """Pairs of workers that need a stream; see `links_of`."""
        if training and model.updated_together:
            flow = flow._replace(norms=norm_crossings(placement, model, self.links))
        self.scaling_worker = scaling_worker(placement) if training and model.scaled else None
        """Worker that has the scale of the loss; None where the loss is not scaled."""
        if self.scaling_worker is not None:
            flow = flow._replace(scales=scale_crossings(placement, self.links))
        self.crossings = flow.everything
        """Crossings of a step: the scale, forward, error gradients, those of shared blocks, and those of clipping."""
        self._between: dict[tuple[str, str], list[Crossing]] = defaultdict(list)
        for one in self.crossings:
            self._between[one.sender, one.receiver].append(one)
        self.counts_labels = training and model.counts_labels
        """True if labels cross with their counts."""
        self.answers = answers(placement, model) if training else {}
        """By stage, the ways of its error gradients; see `answers`."""
        self.ahead = steps_ahead(placement, flow, training=training, merged=model.merged)
        """Number of steps that may have begun beyond the oldest that some worker is still computing; see `steps_ahead`."""
        self._programs = programs_of(placement, model, flow, training=training)
        of_workers = {name: segments(whole) for name, whole in self._programs.items()}
        waiting = Waiting({name: rest for name, (_, rest) in of_workers.items()})
        self.waited = {source.worker: waiting.for_all(source.worker) for source in placement.sources}
        """By each worker that begins steps, the segments after which it has waited for all others; see `Waiting.for_all`."""
        self.unaware = frozenset(name for name, waited in self.waited.items() if waited is None)
        """The workers that begin steps and learn how far the others are by their reports alone."""
        come_late = {one.cargo for one in self.crossings}.intersection((Cargo.WEIGHTS, Cargo.COEFFICIENT))
        self.most_under_way = self.ahead + 1 + bool(come_late or (training and model.merged))
        """The most steps that any worker has under way: one more, where new weights, or the coefficient of an update, come
        while the next step is computed."""
        self.sent_ahead = (
            _sent_ahead(of_workers, waiting) if training and model.samples_ahead else frozenset[Crossing]()
        )
        """Samples and labels that may leave before K lets their step begin: nothing has to be computed for them."""
        most_ahead = max(placement.staleness + model.samples_ahead - self.ahead, 0)
        self.samples_ahead = most_ahead if self.sent_ahead else 0
        """Number of steps that they may leave before."""
        self.runs_ahead = self.samples_ahead * any(one.cargo is Cargo.FEATURE for one in self.sent_ahead)
        """Number of steps that workers with such samples may compute before these steps have begun where samples enter: they
        wait for all others by themselves."""
        self.late_blocks = _late_blocks(self._programs.values(), model) if placement.staleness else frozenset[int]()
        """Blocks whose weights earlier batches may change between a batch's forward and its own update."""
        self._parents = report_parents(first_worker(placement), self.links)
        exchanging = {worker for one in (*flow.norms, *flow.scales) for worker in (one.sender, one.receiver)}
        stateless = (
            stateless_workers(placement, model, self._parents)
            if training and not model.sends_changes  # features that are kept are a state
            else frozenset[str]()
        )
        self.stateless = stateless - exchanging
        """The workers that may begin again in mid-step with nothing, while all others go on; see `stateless_workers`."""
        to_hear = self.unaware | {first_worker(placement)}
        self._heard = {worker: reports_heard(self._parents, worker, to_hear) for worker in placement.workers}

    @property
    def recalls(self) -> bool:
        """Tell whether features are kept where they come, so that each sample's crosses once; see `Recall`."""
        return self.training and self.model.recalls

    def recalls_at(self, worker: str) -> bool:
        """Tell whether it is this worker that keeps them."""
        return self.recalls and kept_stage(self.placement, self.model).worker == worker

    @property
    def sends_changes(self) -> bool:
        """Tell whether both ends keep features, so that what has changed of them crosses."""
        return self.training and self.model.sends_changes

    def program(self, worker: str) -> Program:
        """Return the program of a worker for a step; empty where it has no part in it."""
        return self._programs.get(worker, ())

    def between(self, sender: str, receiver: str) -> tuple[Crossing, ...]:
        """Return the crossings from one worker to another in a step."""
        return tuple(self._between.get((sender, receiver), ()))

    def ahead_of(self, crossing: Crossing) -> int:
        """Return the number of steps that a crossing may come before K lets its step begin."""
        return self.samples_ahead if crossing in self.sent_ahead else 0

    def takes_weights(self, worker: str) -> bool:
        """Tell whether new weights of shared blocks come to a worker in every step."""
        return any(one.cargo is Cargo.WEIGHTS and one.receiver == worker for one in self.crossings)

    def peers(self, worker: str) -> list[str]:
        """The workers to which a worker has a link."""
        return [peer for link in self.links if worker in link for peer in link if peer != worker]

    def report_parent(self, worker: str) -> str | None:
        """The next worker on the way to the first one, which hears all reports; None for the first one."""
        return self._parents.get(worker)

    def reports_heard(self, worker: str) -> dict[str, frozenset[str]]:
        """By peer, the workers whose reports of steps that are done a worker hears from there; see `reports_heard`."""
        return self._heard[worker]


def _sent_ahead(of_workers: Mapping[str, tuple[Program, tuple[Program, ...]]], waiting: Waiting) -> frozenset[Crossing]:
    """All labels that go with nothing computed, and samples where they begin no step too early; see `Waiting.is_bounded`."""
    found: set[Crossing] = set()
    for sent_first, _ in of_workers.values():
        for one in sent_first:
            match one:
                case Send(Crossing(cargo=Cargo.LABEL) as crossing):
                    found.add(crossing)
                case Send(Crossing(cargo=Cargo.FEATURE, receiver=receiver) as crossing):
                    _, rest = of_workers[receiver]
                    used = next(number for number, segment in enumerate(rest) if Receive(crossing) in segment)
                    if waiting.is_bounded(receiver, used):
                        found.add(crossing)
    return frozenset(found)


def _late_blocks(programs: Iterable[Program], model: ModelFacts) -> frozenset[int]:
    """The blocks for which a worker waits between their forward and the update of a weight that they use."""
    late: set[int] = set()
    for program in programs:
        begun: set[int] = set()
        waiting: set[int] = set()
        for operation in program:
            match operation:
                case Forward(stage):
                    begun.update(stage.blocks)
                case Receive():
                    waiting |= begun
                    begun.clear()
                case Update(block) if block in waiting and model.blocks[block].trainable:
                    late.add(block)
    return model.used_with(late)


class PlacementPlan(NamedTuple):
    """A placement with all that follows from it."""

    placement: Placement
    training: StepPlan
    evaluation: StepPlan

    @classmethod
    def of(cls, placement: Placement, model: ModelFacts) -> "PlacementPlan":
        """Compute the plan of a valid placement."""
        return cls(placement, StepPlan(placement, model), StepPlan(placement, model, training=False))
