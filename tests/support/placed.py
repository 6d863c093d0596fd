"""Small models under placements: their blocks, samples and recipes, and sessions in which everything may take any time."""

import copy
import random
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shared.execution.blocks import Method, PlacedBlocks
from shared.execution.in_process_session import InProcessSession, Turn
from shared.execution.model_facts import facts_of
from shared.execution.shared_blocks import BlockPart
from shared.execution.step_in_flight import Parcel
from shared.execution.step_scheduler import StepScheduler
from shared.model.chain import Chain, build_chain
from shared.model.features import Features, Gradients
from shared.model.inputs import Inputs, features_of_inputs
from shared.model.random_state import random_state
from shared.placement import BlockSlice, Placement, StepPlan, Tile, Window, held_blocks
from shared.registry import LossConfig, Precision, Precisions
from shared.registry.optimizers import OptimizerGroup
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import BatchLabels, BatchLoss, LossHead, label_tensors
from shared.training.precision import computing
from shared.training.recipe import OptimizerConfig, Recipe, ScheduleConfig

GROUPS = (
    OptimizerGroup(match=("*bias",), weight_decay=0.1, learning_rate=0.02),
    OptimizerGroup(match=("*0.weight",), weight_decay=0.01),
)
CPU, INPUTS, WIDTH, CLASSES = torch.device("cpu"), 5, 6, 3


def dropping() -> nn.Sequential:
    """Four blocks, two of which draw random numbers and one of which writes to its input."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh(), nn.Dropout(0.3)),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)),
        nn.Linear(WIDTH, CLASSES),
    )


def normed() -> nn.Sequential:
    """Three blocks with statistics over samples, the first of which does not learn."""
    module = nn.Sequential(
        nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.BatchNorm1d(WIDTH)),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()),
        nn.Linear(WIDTH, CLASSES),
    )
    module[0].requires_grad_(False)
    return module


MODELS = {"dropping": dropping, "normed": normed}


def built(name: str) -> nn.Sequential:
    with random_state("weights"):
        return MODELS[name]()


def chain_of(module: nn.Module, precision: Precision = "fp32", inputs: int = INPUTS) -> Chain:
    with computing(precision):
        return build_chain(module, torch.zeros(8, inputs))


def recipe(
    optimizer: str,
    clip_norm: float | None = None,
    precision: Precisions = "fp32",
    *,
    checkpoint_activations: bool = False,
    accumulate_batches: int = 1,
    clip: str = "block",
    samples_ahead: int = 0,
    mean: str = "batch",
) -> Recipe:
    return Recipe(
        optimizer=OptimizerConfig(name=optimizer, learning_rate=0.05, clip_norm=clip_norm, clip=clip, groups=GROUPS),
        schedule=ScheduleConfig(name="cosine", every="step", warmup_steps=2),
        loss="cross_entropy",
        seed=7,
        precision=precision,
        checkpoint_activations=checkpoint_activations,
        accumulate_batches=accumulate_batches,
        samples_ahead=samples_ahead,
        mean=mean,
        steps_per_epoch=10,
        total_steps=30,
    )


def batch_of(step: int, samples: int) -> tuple[Tensor, Tensor]:
    with random_state("batch", step):
        return torch.randn(samples, INPUTS), torch.randint(CLASSES, (samples,))


def method(backward: str = "replay", loss: LossConfig | None = None) -> Method:
    return Method(LossHead(loss or LossConfig(), None), backward)


def in_process(
    chains: dict[str, Chain], placement: Placement, told: Recipe, backward: str = "replay"
) -> InProcessSession:
    return InProcessSession(chains, placement, told, method(backward, told.loss), CPU)


def state_of(chains: dict[str, Chain], placement: Placement) -> dict[str, Tensor]:
    """The state of every block where its owner has it."""
    state: dict[str, Tensor] = {}
    for index in range(placement.blocks):
        block = chains[placement.owner(index)].blocks[index]
        state |= {name: value.detach() for name, value in (block.named_parameters() | block.named_buffers()).items()}
    return state


MODEL_FACTS = {name: facts_of(chain_of(built(name))) for name in MODELS}


class WatchedBlocks(PlacedBlocks):
    """Notes how old the weights were that each forward used, and how many inputs are kept."""

    def __init__(self, held: HeldBlocks, plan: StepPlan, worker: str, how: Method) -> None:
        super().__init__(held, plan, worker, how)
        self.staleness: list[int] = []
        self.most_inputs_kept = 0
        """Inputs of earlier steps that were still held when another was forwarded."""
        self._inputs: list[weakref.ref[Tensor]] = []
        self._updated: dict[int, int] = defaultdict(lambda: -1)

    def forward(self, step: int, tile: Tile, inputs: Features) -> Features:
        """See `PlacedBlocks`."""
        self._note(step, tile, inputs)
        return super().forward(step, tile, inputs)

    def learn(self, step: int, tile: Tile, inputs: Features, *more: Any) -> tuple[BatchLoss, Gradients]:
        """See `PlacedBlocks`."""
        self._note(step, tile, inputs)
        return super().learn(step, tile, inputs, *more)

    def _note(self, step: int, tile: Tile, inputs: Features) -> None:
        self.staleness += [
            step - 1 - self._updated[block] for block in tile.blocks if self.held.chain.blocks[block].trainable
        ]
        self._inputs = [known for known in self._inputs if known() is not None]
        self.most_inputs_kept = max(self.most_inputs_kept, len(self._inputs))
        self._inputs += [weakref.ref(tensor) for tensor in inputs if tensor is not None]

    def update(self, step: int, blocks: Sequence[int], *more: Any) -> None:
        """See `PlacedBlocks`."""
        for block in blocks:
            assert step == self._updated[block] + 1, "each step once, in their order"
            self._updated[block] = step
        super().update(step, blocks, *more)

    def take_weights(self, one: BlockSlice, received: BlockPart) -> None:
        """See `PlacedBlocks`."""
        self._updated[one.block] += 1
        super().take_weights(one, received)


class LooseSession:
    """All workers of a placement; dice decide whose work, and whose message, comes next. Nothing is encoded."""

    def __init__(
        self,
        module: nn.Module,
        placement: Placement,
        told: Recipe,
        backward: str,
        dice: random.Random,
        make_chain: Callable[[nn.Module], Chain] = chain_of,
    ) -> None:
        """make_chain: of each worker's module."""
        self.chains = {worker: make_chain(copy.deepcopy(module)) for worker in placement.workers}
        self.turns: list[Turn] = []
        self.most_unanswered = 0
        """Most steps that had begun at a worker and whose tensors it still needed."""
        self._placement, self._dice = placement, dice
        self.plan = plan = StepPlan(placement, facts_of(next(iter(self.chains.values())), told))
        self.blocks = {
            worker: WatchedBlocks(
                HeldBlocks(self.chains[worker], told, CPU, held_blocks(placement, worker), told.precision_of(worker)),
                plan,
                worker,
                method(backward, told.loss),
            )
            for worker in placement.workers
        }
        self._windows = {worker: Window(plan, worker) for worker in placement.workers}
        self._steps = {worker: StepScheduler(window, self.blocks[worker]) for worker, window in self._windows.items()}
        self._mail: dict[tuple[str, str], deque[Parcel]] = defaultdict(deque)

    def train(self, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        """All batches, to the end."""
        begun = {source.worker: 0 for source in self._placement.sources}
        while True:
            fed = {worker: self._windows[worker].fed for worker in begun}
            moves = [("begin", worker) for worker in begun if self._may_begin(worker, begun, len(batches))]
            moves += [("feed", worker) for worker in begun if self._may_feed(worker, begun, len(batches))]
            moves += [("work", worker) for worker, steps in self._steps.items() if steps.next_work() is not None]
            moves += [("mail", link) for link, waiting in self._mail.items() if waiting]
            if not moves:
                break
            what, which = self._dice.choice(moves)
            if what == "feed" or (what == "begin" and fed[which] == begun[which]):
                self._feed(which, fed[which], *batches[fed[which]])
            if what == "begin":
                self._post(self._steps[which].begin(begun[which]))
                begun[which] += 1
            elif what == "feed":
                pass
            elif what == "work":
                self._work(which)
            else:
                one = self._mail[which].popleft()
                self._steps[one.crossing.receiver].deliver_sent(one)
            self._report()
            self.most_unanswered = max(
                self.most_unanswered, *(window.begun - window.answered for window in self._windows.values())
            )
        assert not any(steps.in_flight for steps in self._steps.values()), "somebody waits for ever"
        assert set(begun.values()) == {len(batches)}

    def _report(self) -> None:
        """Have those that hear of other workers know what these have done."""
        for name, window in self._windows.items():
            for worker in {other for heard in self.plan.reports_heard(name).values() for other in heard}:
                for step in range(window.next_of(worker), self._windows[worker].done):
                    window.hear(worker, step)

    def _may_begin(self, worker: str, begun: dict[str, int], steps: int) -> bool:
        window = self._windows[worker]
        if begun[worker] >= steps:
            return False
        if worker not in window.plan.unaware:
            return begun[worker] < window.admitted
        under_way = {step for steps in self._steps.values() for step in steps.in_flight}
        under_way |= {one.step for waiting in self._mail.values() for one in waiting} | set(begun.values())
        oldest = min(under_way)
        return begun[worker] - oldest <= self._placement.staleness

    def _may_feed(self, worker: str, begun: dict[str, int], steps: int) -> bool:
        """Tell whether samples may leave before their step begins."""
        fed, ahead = self._windows[worker].fed, self.plan.samples_ahead
        if not ahead or fed >= steps:
            return False
        return fed < begun[worker] + ahead + self._may_begin(worker, begun, steps)

    def _feed(self, worker: str, step: int, inputs: Inputs, labels: BatchLabels) -> None:
        whole = next(source.rows for source in self._placement.sources if source.worker == worker)
        told = label_tensors(labels)
        rows = whole.scaled(len(told[0]), self._placement.batch_size)
        mine = slice(rows.begin, rows.end)
        own, labelled = (tuple(one[mine].clone() for one in each) for each in (features_of_inputs(inputs), told))
        self._post(self._steps[worker].feed(step, len(told[0]), own, labelled))

    def _work(self, worker: str) -> None:
        steps = self._steps[worker]
        works = [work for step in steps.in_flight for work in steps.work_of(step)]
        work = self._dice.choice(works)
        self.turns.append(Turn(worker, work.step, work.segment))
        self._post(steps.run(work))
        steps.finish(work)

    def _post(self, outgoing: list[Parcel]) -> None:
        for one in outgoing:
            self._mail[one.crossing.sender, one.crossing.receiver].append(one)
