"""Report on a placement: the crossings of a step, the memory of each worker, and the data that each worker sees.

Counted from the shapes of the workload's tensors; nothing is measured and no trainer is contacted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from edge_agent.experiment.placing import placement_of
from edge_agent.experiment.privacy import permissions_of
from edge_agent.experiment.workload import Workload
from shared.execution.block_slices import Slices
from shared.execution.crossing_types import CrossingTypes
from shared.execution.recalled import kept_in_memory
from shared.model.chain import Block
from shared.model.features import Features, FeatureSpecs, call_module, specs_bytes
from shared.model.footprint import activation_bytes
from shared.model.spec import TensorSpec
from shared.placement import (
    AGENT,
    Cargo,
    Crossing,
    ModelFacts,
    Placement,
    Route,
    Rows,
    StepPlan,
    carries_raw,
    crossings,
    held_blocks,
    loss_rows,
    may_keep,
    replica_keepers,
    stages,
    told_by_gradients,
)
from shared.runtime.block_form import entries_of
from shared.runtime.forms import numbers_spec
from shared.tensor_wire import slot_codec
from shared.training.optimizers import optimizer_bytes
from shared.training.policies import policy_by_name
from shared.training.precision import computing

_UNCODED = "raw"


@dataclass(frozen=True, slots=True)
class ReportedCrossing:
    """A crossing of a whole batch. bytes: exact for dense tensors; messages and their heads come on top."""

    crossing: Crossing
    codec: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a worker holds. The network's buffers, the loss and torch itself take more."""

    worker: str
    weights: int
    """Parameters and buffers of the blocks that it runs or owns."""
    gradients: int
    optimizer: int
    """Optimizer state of the blocks that it owns, after their first update."""
    activations: int
    """Bytes that the backward of one batch needs."""
    waiting: int
    """Bytes that are kept of up to K batches more, whose error gradients are still to come."""
    ahead: int
    """Bytes of samples and labels that are there before their step begins (`data.ahead`)."""
    kept: int
    """Bytes of the features of which changes are sent (`deployment.changes`), of all samples, with those that a checkpoint
    copies; or of a flag of each sample that is recalled."""

    @property
    def total(self) -> int:
        """All of it."""
        for_a_batch = self.activations + self.waiting + self.ahead
        return self.weights + self.gradients + self.optimizer + for_a_batch + self.kept


@dataclass(frozen=True, slots=True)
class Visibility:
    """The data that a worker gets to see in training."""

    worker: str
    inputs: bool
    """Raw samples, or features off which they can be read."""
    labels: bool
    gradients_tell: tuple[str, ...]
    """Further data that the gradients and new weights that it gets can tell it: inputs, labels."""
    outputs: bool
    features: tuple[int, ...]
    """The blocks whose inputs come to it from another worker, raw samples left out."""
    weights: tuple[int, ...]
    """The blocks whose weights it has, in memory or as replicas."""


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """A placement with the names of the blocks, and its consequences."""

    placement: Placement
    block_names: tuple[str, ...]
    transfers: tuple[ReportedCrossing, ...]
    memory: tuple[Memory, ...]
    visibility: tuple[Visibility, ...]


def report_on(workload: Workload) -> PlacementReport:
    """The placement of a workload, judged and counted. Raises ConfigError, DataError or ModelError for one that may not be."""
    placement, chain, model = placement_of(workload), workload.chain, workload.facts
    plan, types = StepPlan(placement, model), CrossingTypes(chain, workload.recipe, placement)
    return PlacementReport(
        placement=placement,
        block_names=tuple(block.name for block in chain.blocks),
        transfers=tuple(
            # The first slice stands for all of its block.
            _transfer(workload, placement, types, one)
            for one in plan.crossings
            if not one.of_block.number
        ),
        memory=tuple(memory_of(workload, plan, worker) for worker in placement.workers),
        visibility=tuple(
            _visibility(placement, model, worker, _kept(workload, placement, model, worker))
            for worker in placement.workers
        ),
    )


def crossing_bytes(workload: Workload, plan: StepPlan, worker: str) -> int:
    """Count the bytes that a worker sends and gets in a step."""
    types = CrossingTypes(workload.chain, workload.recipe, plan.placement)
    ways = (one for one in plan.crossings if worker in (one.sender, one.receiver))
    return sum(_transfer(workload, plan.placement, types, one).bytes for one in ways)


def _transfer(workload: Workload, placement: Placement, types: CrossingTypes, one: Crossing) -> ReportedCrossing:
    codec = placement.codecs.get(Route(one.sender, one.receiver, one.cargo), _UNCODED)
    return ReportedCrossing(one, codec, _payload_bytes(workload, types, one, codec))


def _payload_bytes(workload: Workload, types: CrossingTypes, one: Crossing, codec: str) -> int:
    chain = workload.chain
    match one.cargo:
        case Cargo.FEATURE | Cargo.ERROR_GRADIENT:
            sent, coded = _of_rows(types.specs(one.index), one.rows), chain.coded_slots(one.index)
            return sum(_encoded_bytes(sent[slot], codec if coded[slot] else _UNCODED) for slot in one.slots)
        case Cargo.LABEL:
            return specs_bytes(_of_rows(workload.labels, one.rows))
        case Cargo.WEIGHT_GRADIENT | Cargo.WEIGHTS:
            slices = Slices(chain, workload.recipe, merged=workload.facts.merged).of(one.index)
            entries = (each for of in slices for each in entries_of(chain.blocks[one.index], one.cargo, of))
            return sum(_encoded_bytes(each.spec, codec if each.may_be_coded else _UNCODED) for each in entries)
        case Cargo.NORMS | Cargo.COEFFICIENT | Cargo.SCALE:
            return numbers_spec(chain, one).bytes


def _encoded_bytes(tensor: TensorSpec, codec: str) -> int:
    return slot_codec(codec, tensor.dtype).encoded_bytes(tensor.shape, tensor.dtype)


def _of_rows(specs: FeatureSpecs, rows: Rows) -> FeatureSpecs:
    return tuple(replace(spec, shape=(rows.count, *spec.shape[1:])) for spec in specs)


def memory_of(workload: Workload, plan: StepPlan, worker: str) -> Memory:
    """Count the bytes that a worker holds."""
    placement, model, chain, config = plan.placement, plan.model, workload.chain, workload.config
    held = [chain.blocks[block] for block in held_blocks(placement, worker)]
    owned = [block for block in held if placement.owner(block.index) == worker]
    learnt = _bytes(_learnt(owned))
    state_bytes = partial(optimizer_bytes, config=workload.recipe.optimizer_of_states)
    activations = waiting = 0
    for stage in stages(placement, worker, model):
        if not model.answered_slots(stage.first, stage.stop):
            continue  # no backward, so nothing is kept for one
        blocks = chain.blocks[stage.first : stage.stop]
        inputs = _of_rows(chain.features[stage.first], stage.rows)
        read = model.read_slots(stage.first, stage.stop)
        answered = frozenset(slot for slot in read if model.value(stage.first, slot).returns)
        kept, again = _kept_of_forward(workload, worker, blocks, inputs, answered)
        activations += kept + again
        if stage.stop < placement.blocks:
            graphs = policy_by_name(config.deployment.backward).keeps_graphs
            waiting += kept + _bytes(_learnt(blocks)) if graphs else specs_bytes(tuple(inputs[slot] for slot in read))
            if graphs:  # with the weights of the forward
                continue
        if workload.recipe.staleness_correction != "none":  # a copy, predicted for a forward
            late = [one for one in blocks if one.index in plan.late_blocks and placement.owner(one.index) == worker]
            activations += _bytes(_learnt(late))
    if model.updated_together:  # gradients wait for the coefficient, which follows from all
        waiting += learnt
    return Memory(
        worker,
        weights=sum(_bytes((*block.named_parameters().values(), *_buffers(block))) for block in held),
        gradients=_bytes(_learnt(held)) + (learnt if workload.recipe.accumulate_batches > 1 else 0),
        optimizer=sum(state_bytes(block.named_parameters().values()) for block in owned)
        + (learnt if workload.recipe.ema is not None else 0),
        activations=activations,
        waiting=placement.staleness * waiting,
        ahead=plan.samples_ahead * _bytes_ahead(workload, plan, worker),
        kept=kept_in_memory(chain, workload.recipe, plan, worker),
    )


def _bytes_ahead(workload: Workload, plan: StepPlan, worker: str) -> int:
    """Count the bytes of the samples and labels of one batch that a worker has before their step begins."""
    sources = [source.rows for source in plan.placement.sources if source.worker == worker]
    samples = [one.rows for one in plan.sent_ahead if one.receiver == worker and one.cargo is Cargo.FEATURE]
    labels = [one.rows for one in plan.sent_ahead if one.receiver == worker and one.cargo is Cargo.LABEL]
    if any(one.sender == worker for one in plan.sent_ahead):  # a source takes a batch as a whole
        samples, labels = samples + sources, labels + sources
    return sum(specs_bytes(_of_rows(workload.chain.features[0], rows)) for rows in samples) + sum(
        specs_bytes(_of_rows(workload.labels, rows)) for rows in labels
    )


def _kept_of_forward(
    workload: Workload, worker: str, blocks: Sequence[Block], inputs: FeatureSpecs, answered: frozenset[int]
) -> tuple[int, int]:
    """Count the bytes that a forward of blocks keeps for its backward, and those that the backward computes again at once."""
    with computing(workload.recipe.precision_of(worker)):
        if not workload.recipe.checkpoint_activations:
            return activation_bytes(_Stack(blocks), inputs, answered), 0
        entering, each, rows = 0, [], Rows(0, inputs[0].shape[0])
        for block in blocks:
            specs = _of_rows(workload.chain.features[block.index], rows)
            entering += specs_bytes(specs)
            floats = frozenset(slot for slot, spec in enumerate(specs) if spec.differentiable)
            each.append(activation_bytes(_Stack([block]), specs, floats))
        return entering, max(each)


def _kept(workload: Workload, placement: Placement, model: ModelFacts, worker: str) -> set[int]:
    """The blocks of which a worker keeps replicas, while every trainer is there."""
    if workload.config.checkpoints.replicas != 1:
        return set()
    permissions = permissions_of(workload.config.privacy, placement.labels)
    changing = [index for index, block in enumerate(model.blocks) if block.changes]
    trainers = [name for name in placement.workers if name != AGENT]
    keepers = replica_keepers(
        placement, trainers, changing, lambda block, name: may_keep(block, name, model, permissions)
    )
    return {block for (_, keeper), blocks in keepers.items() if keeper == worker for block in blocks}


def _visibility(placement: Placement, model: ModelFacts, worker: str, kept: set[int]) -> Visibility:
    arriving = [one for one in crossings(placement, model) if one.receiver == worker]
    features = [one for one in arriving if one.cargo is Cargo.FEATURE]
    has_samples = any(source.worker == worker for source in placement.sources)
    return Visibility(
        worker,
        inputs=has_samples or any(carries_raw(one, model) for one in features),
        labels=has_samples or any(one.cargo is Cargo.LABEL for one in arriving),
        gradients_tell=told_by_gradients(placement, model, worker, kept),
        outputs=loss_rows(placement, worker) is not None,
        features=tuple(sorted({one.index for one in features if not carries_raw(one, model)})),
        weights=tuple(sorted({*held_blocks(placement, worker), *kept})),
    )


def _learnt(blocks: Iterable[Block]) -> list[nn.Parameter]:
    return [value for block in blocks for value in block.named_parameters().values() if value.requires_grad]


def _buffers(block: Block) -> list[Tensor]:
    return [*block.named_buffers().values(), *block.named_transients().values()]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


class _Stack(nn.Module):
    """Blocks one after another, each with all that the one before it returns."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__()
        self._blocks = nn.ModuleList(block.module for block in blocks)

    def forward(self, *features: Tensor) -> Features:
        """Return the output of the last block for these features."""
        for block in self._blocks:
            features = call_module(block, features)
        return features
