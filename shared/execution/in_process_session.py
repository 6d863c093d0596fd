"""All workers of a placement in one process: their steps, policies, codecs and feedback as in a session, and no network.

Given the order in which the workers of a real run have computed, this session ends with the same weights, bit for bit
(tests/integration/benchmarks/test_in_process_session_agrees.py). Knows nothing of datasets.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from shared.errors import DifferentError
from shared.execution.blocks import Method, PlacedBlocks
from shared.execution.counted_batches import Batch, CountedBatch, WaitingBatches, counted, uncounted
from shared.execution.feedback import Feedback, decoded
from shared.execution.model_facts import facts_of
from shared.execution.residuals import Residuals
from shared.execution.shared_blocks import BlockPart, CodedWeights, weights_layout
from shared.execution.step_in_flight import Load, Parcel
from shared.execution.step_scheduler import StepScheduler, Work
from shared.execution.step_tensors import rows_of
from shared.model.chain import Chain
from shared.model.inputs import Inputs, features_of_inputs
from shared.placement import (
    GROUP,
    BlockSlice,
    Cargo,
    Placement,
    PlacementPlan,
    Route,
    Window,
    from_group,
    held_blocks,
    moves,
    scaling_worker,
)
from shared.registry import codec_spec
from shared.training import block_state
from shared.training.held_blocks import HeldBlocks
from shared.training.loss_scale import LossScale
from shared.training.losses import BatchLabels, BatchLoss, label_tensors, whole_loss
from shared.training.metrics import Tally
from shared.training.recipe import Recipe


class Turn(NamedTuple):
    """A worker computes a segment of a step."""

    worker: str
    step: int
    segment: int


@dataclass(slots=True)
class _Entry:
    """The steps whose samples have entered at one worker."""

    worker: str
    fed: int
    """First step whose samples have not left."""
    begun: int
    """First step that has not begun."""


class InProcessSession:
    """A session under one placement. The blocks of the chains are trained in place."""

    def __init__(
        self,
        chains: Mapping[str, Chain],
        placement: Placement,
        recipe: Recipe,
        method: Method,
        device: torch.device,
        give: Callable[[Parcel], object] | None = None,
    ) -> None:
        """chains: of each worker; where no block is shared, they may be one and the same.

        give: takes the gradients of a member's blocks for its group, which answers by `take_merged`; None outside a group.
        """
        recipe = recipe.model_copy(update={"recalled_samples": 0, "changes": None})  # here nothing crosses a link
        self._chain, self._method = next(iter(chains.values())), method
        self._model = facts_of(self._chain, recipe, merged=give is not None)
        self._give = give
        self._held = {
            name: HeldBlocks(chains[name], recipe, device, held_blocks(placement, name), recipe.precision_of(name))
            for name in placement.workers
        }
        self._recipe, self._batches = recipe, recipe.accumulate_batches
        self._losses: dict[int, list[BatchLoss]] = {}
        self._residuals = {name: Residuals() for name in placement.workers}
        self._place(placement)

    def _place(self, placement: Placement) -> None:
        self._placement, method = placement, self._method
        plans = PlacementPlan.of(placement, self._model)
        self._samples_ahead = plans.training.samples_ahead
        blocks = {name: PlacedBlocks(self._held[name], plans.training, name, method) for name in placement.workers}
        self._blocks = blocks
        self._windows = {name: Window(plans.training, name) for name in placement.workers}
        self._steps = {name: StepScheduler(window, blocks[name]) for name, window in self._windows.items()}
        self._judging = {name: Window(plans.evaluation, name) for name in placement.workers}
        self._judges = {name: StepScheduler(window, blocks[name]) for name, window in self._judging.items()}
        values = self._model.features
        self._feedback = {
            (one, other): Feedback(method.feedback, plans.training.between(other, one), values, self._batches)
            for one, other in permutations(placement.workers, 2)
        }
        """By the sender of features, and by their receiver."""
        self._sources = {source.worker: source.rows for source in placement.sources}

    def change(self, placement: Placement) -> None:
        """Go on under another placement of the same workers; blocks move as they are. Nothing is in flight."""
        arriving: dict[str, dict[int, block_state.BlockTensors]] = {name: {} for name in placement.workers}
        for block, sender, receiver, whole in moves(self._placement, placement):
            state = {name: tensor.clone() for name, tensor in self._held[sender].block_tensors(block).items()}
            arriving[receiver][block] = state if whole else block_state.without_optimizer(state)
        for name, held in self._held.items():
            held.hold(held_blocks(placement, name), arriving[name])
        self._place(placement)

    def train(self, first_step: int, stop_step: int, batches: Iterator[Batch]) -> list[BatchLoss]:
        """Steps whose error gradients come as late to where samples enter as K allows, and no later; returns their losses.

        Begins and ends with nothing in flight, as an epoch does; the last batches end one after the other.
        """
        for _ in self.training(first_step, stop_step, batches):
            pass
        return self.taken_losses()

    def training(self, first_step: int, stop_step: int, batches: Iterator[Batch]) -> Iterator[None]:
        """Do the same steps as `train`, and yield wherever others of a group have to go on first."""
        under_way: deque[int] = deque()
        entering = self._counted(first_step, batches)
        _move(self._windows, first_step)
        for step in range(first_step, stop_step):
            if len(under_way) > self._placement.staleness:
                yield from self._ending(under_way.popleft())
            self._feed(step, next(entering))
            self._begin(step)
            under_way.append(step)
            self._pump(self._may_end(None))
        while under_way:
            yield from self._ending(under_way.popleft())

    def _ending(self, step: int) -> Iterator[None]:
        self._pump(self._may_end(step))
        while self._give is not None and any(step in steps.in_flight for steps in self._steps.values()):
            yield
            self._pump(self._may_end(step))

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss; None where it is not scaled."""
        return self._held[scaling_worker(self._placement)].loss_scale

    def weights(self, worker: str, block: int) -> BlockPart:
        """Return the weights and buffers of a block as a worker has them, not copied."""
        return weights_layout(self._held[worker].chain.blocks[block])

    def averages(self, block: int) -> dict[str, Tensor]:
        """Return the averages of the weights of a block at its owner, by the names of these; none where none are kept."""
        return block_state.averages_in(self._held[self._placement.owner(block)].block_tensors(block))

    def take_weights(self, weights: Mapping[int, BlockPart]) -> None:
        """Go on with these weights of blocks at every worker that holds them. Nothing is in flight."""
        for held in self._held.values():
            for block in weights.keys() & set(held.indices):
                held.take_weights(block, weights[block])

    def take_merged(self, step: int, one: BlockSlice, weights: BlockPart | CodedWeights, rate_drops: int) -> None:
        """Bring the weights of a slice that the group has updated. rate_drops: of the group."""
        crossing = from_group(self._placement, one)
        self._steps[crossing.receiver].deliver_sent(
            Parcel(step, self._placement.batch_size, crossing, weights, rate_drops=rate_drops)
        )

    def replay(self, turns: Iterable[Turn], batches: Iterator[Batch]) -> list[BatchLoss]:
        """Run steps in the order of a real run's named workers. The others compute arrivals in their order."""
        turns = list(turns)
        named = {turn.worker for turn in turns}
        _move(self._windows, first_step := min(turn.step for turn in turns))
        entering, begun = self._counted(first_step, batches), set[int]()
        for turn in turns:
            if turn.step not in begun:
                begun.add(turn.step)
                self._feed(turn.step, next(entering))
                self._begin(turn.step)
            work = self._work(turn.worker, turn.step, turn.segment)
            assert work is not None, f"{turn} comes before what it needs"
            self._do(self._steps[turn.worker], work)
            self._pump(lambda worker, _work: worker not in named)
        return self.taken_losses()

    @property
    def working(self) -> dict[str, int]:
        """The workers that compute anything, and of how many segments their programs are."""
        return {name: len(steps.needs) for name, steps in self._steps.items() if steps.needs}

    def follow(
        self, orders: Mapping[str, Sequence[int]], first_step: int, batches: Iterator[Batch]
    ) -> dict[int, list[BatchLoss]]:
        """Steps from this one on, with nothing in flight before and after, each worker in an order of its own.

        orders: by worker, the segments of its program in the order in which it computes them, each for its own next step.
        Returns the losses of each step, as they were computed. Raises DifferentError where an order cannot be followed.
        """
        left = {worker: deque(order) for worker, order in orders.items()}
        next_steps = {worker: [first_step] * len(steps.needs) for worker, steps in self._steps.items()}
        _move(self._windows, first_step)
        entries = [_Entry(name, first_step, first_step) for name in self._sources]
        waiting, went_on = WaitingBatches(self._counted(first_step, batches), first_step), True
        while went_on:
            went_on = False
            for worker, order in left.items():
                while order and order[0] < len(next_steps[worker]):
                    step = next_steps[worker][order[0]]
                    for entry in entries:
                        self._enter(entry, step, waiting)
                    waiting.drop_before(min(entry.fed for entry in entries))
                    if (work := self._work(worker, step, order[0])) is None:
                        break
                    next_steps[worker][order.popleft()] += 1
                    self._do(self._steps[worker], work)
                    went_on = True
        stuck = [worker for worker, steps in self._steps.items() if steps.in_flight or left.get(worker)]
        if stuck:
            raise DifferentError(f"worker {stuck[0]!r} is said to have computed in an order in which nobody can")
        losses, self._losses = self._losses, {}
        return losses

    def evaluate(self, inputs: Inputs, labels: BatchLabels, tally: Tally | None = None) -> BatchLoss:
        """The loss of one batch as deployed: features go through their codecs. tally: counts it for metrics."""
        for blocks in self._blocks.values():
            blocks.tally = tally
        _move(self._judging, 0)
        under_way = deque[Parcel]()
        for worker in self._sources:
            under_way += self._fed(self._judges[worker], 0, inputs, labels)
        for worker in self._sources:
            under_way += self._judges[worker].begin(0)
        losses: list[BatchLoss] = []
        while True:
            for steps in self._judges.values():
                while (work := steps.next_work()) is not None:
                    under_way += steps.run(work)
                    if (loss := steps.finish(work)) is not None and work.ends_step:
                        losses.append(loss)
            if not under_way:
                return whole_loss(losses)
            one = under_way.popleft()
            one.load = self._coded(one)
            self._judges[one.crossing.receiver].deliver_sent(one)

    def _may_end(self, oldest: int | None) -> Callable[[str, Work], bool]:
        """Return a test of work: where samples enter, only that of `oldest` may end its step if it waited for anything."""
        return lambda worker, work: (
            worker not in self._sources or not work.ends_step or work.segment == 0 or work.step == oldest
        )

    def _work(self, worker: str, step: int, segment: int) -> Work | None:
        """Return a segment of a step; None where something is missing that it needs."""
        return next((work for work in self._steps[worker].work_of(step) if work.segment == segment), None)

    def _enter(self, entry: _Entry, until: int, waiting: WaitingBatches) -> None:
        """Have samples leave and batches begin at one worker up to a step, no sooner than they could.

        What is known when a batch begins, as the scale of its loss, may follow from earlier steps.
        """
        window = self._windows[entry.worker]
        latest = window.cleared + window.ahead
        while entry.fed <= min(until, latest + self._samples_ahead) and (batch := waiting.at(entry.fed)) is not None:
            self._feed_at(entry.worker, entry.fed, batch)
            entry.fed += 1
        while entry.begun <= min(until, latest, entry.fed - 1):
            self._begin_at(entry.worker, entry.begun)
            entry.begun += 1
            latest = window.cleared + window.ahead

    def _feed(self, step: int, batch: CountedBatch) -> None:
        for worker in self._sources:
            self._feed_at(worker, step, batch)

    def _feed_at(self, worker: str, step: int, batch: CountedBatch) -> None:
        self._losses.setdefault(step, [])
        for one in self._fed(self._steps[worker], step, *batch):
            self._deliver(one)

    def _begin(self, step: int) -> None:
        for worker in self._sources:
            self._begin_at(worker, step)

    def _begin_at(self, worker: str, step: int) -> None:
        for one in self._steps[worker].begin(step):
            self._deliver(one)

    def _counted(self, first_step: int, batches: Iterator[Batch]) -> Iterator[CountedBatch]:
        """The same batches with the counts of their labels, where the loss goes by them."""
        return counted(first_step, batches, self._recipe) if self._model.counts_labels else uncounted(batches)

    def _fed(
        self, steps: StepScheduler, step: int, inputs: Inputs, labels: BatchLabels, counts: Tensor | None = None
    ) -> list[Parcel]:
        features, told = features_of_inputs(inputs), label_tensors(labels)
        samples = len(told[0])
        rows = self._sources[steps.worker].scaled(samples, self._placement.batch_size)
        own, own_labels = (tuple(rows_of(one, rows) for one in each) for each in (features, told))
        return steps.feed(step, samples, own, own_labels, counts=counts)

    def _pump(self, may_do: Callable[[str, Work], bool]) -> None:
        """Do all that can be done and may be."""
        done = True
        while done:
            done = False
            for worker, steps in self._steps.items():
                for step in steps.in_flight:
                    if (work := next((one for one in steps.work_of(step) if may_do(worker, one)), None)) is not None:
                        self._do(steps, work)
                        done = True

    def _do(self, steps: StepScheduler, work: Work) -> None:
        for one in steps.run(work):
            self._deliver(one)
        if (loss := steps.finish(work)) is not None and work.ends_step:
            self._losses[work.step].append(loss)

    def _deliver(self, one: Parcel) -> None:
        crossing = one.crossing
        if crossing.receiver == GROUP:
            assert self._give is not None, "only programs of a group's member have it"
            self._give(one)
            return
        arrived = self._coded(one)
        if crossing.cargo is Cargo.FEATURE:
            feedback = self._feedback[crossing.sender, crossing.receiver]
            if feedback.wants(crossing):
                assert isinstance(arrived, tuple)
                assert isinstance(one.load, tuple)
                feedback.note(one.step, crossing, arrived, one.load, one.scale)
        if crossing.cargo is Cargo.ERROR_GRADIENT:
            feedback = self._feedback[crossing.receiver, crossing.sender]
            if (errors := feedback.errors(one.step, crossing)) is not None:
                assert isinstance(arrived, tuple)
                arrived = feedback.compensated(arrived, errors, one.samples)
            feedback.forget(one.step, crossing)
        one.load = arrived
        self._steps[crossing.receiver].deliver_sent(one)

    def _coded(self, one: Parcel) -> Load:
        """Return the load as the receiver decodes it."""
        crossing = one.crossing
        codec = self._placement.codecs.get(Route(crossing.sender, crossing.receiver, crossing.cargo), "raw")
        if isinstance(one.load, CodedWeights):
            return one.load.received
        if isinstance(one.load, dict):
            is_sent_coded = crossing.cargo is Cargo.WEIGHT_GRADIENT and codec_spec(codec).lossy
            return (
                self._residuals[crossing.sender].sent(codec, crossing.of_block, one.load) if is_sent_coded else one.load
            )
        if crossing.cargo not in (Cargo.FEATURE, Cargo.ERROR_GRADIENT):
            return one.load
        return decoded(codec, one.load, self._chain.coded_slots(crossing.index))

    def taken_losses(self) -> list[BatchLoss]:
        """Take the losses of the steps that are done, in their order. Nothing is in flight."""
        assert not any(steps.in_flight for steps in self._steps.values()), "every step is done"
        losses, self._losses = self._losses, {}
        return [whole_loss(parts) for _, parts in sorted(losses.items())]


def _move(windows: Mapping[str, Window], step: int) -> None:
    """Have this step be the next one of every worker, with nothing under way."""
    for window in windows.values():
        window.move_to(step)
