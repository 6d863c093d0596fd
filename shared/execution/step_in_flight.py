"""One step under way at one worker: what has come, what was computed, what can be next, and what it sends."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from shared.codec import Encoded
from shared.execution.shared_blocks import BlockPart, CodedWeights
from shared.execution.step_tensors import Piece, StepTensors
from shared.model.features import Slots
from shared.placement import BlockSlice, Cargo, Crossing
from shared.training.clipping import BlockNorms
from shared.training.held_blocks import BlockGradients
from shared.training.losses import BatchLoss

Load = Slots | BlockPart | CodedWeights
"""Load of a crossing: tensors slot by slot, None where none crosses, or those of a block by name."""


EncodedSlots = dict[int, Encoded | None]
"""The tensors of a load by slot, None where there is no gradient."""


def tensors_in(load: Load) -> Iterator[Tensor]:
    """Yield the tensors of a load, those of a block by their names, which may come in any order."""
    of_block = load.weights if isinstance(load, CodedWeights) else load
    tensors = map(of_block.__getitem__, sorted(of_block)) if isinstance(of_block, dict) else of_block
    for tensor in tensors:
        if tensor is not None:
            yield tensor


@dataclass(slots=True)
class StepInFlight:
    """The state of one step on a worker."""

    step: int
    samples: int
    """Number of samples in the whole batch, or with `numbers` of those whose feature is new, until they are kept here."""
    batch_samples: int
    """Number of samples in the whole batch."""
    has_begun: bool
    """True once the step may be computed here; its samples may be there before."""
    next_segments: list[int]
    """The segments that can be next, as far as this step goes: those before them are done, and what they need has come."""
    tensors: StepTensors
    done: set[int] = field(default_factory=set)
    """The segments that are done."""
    arrived: dict[int, dict[int, "Parcel"]] = field(default_factory=dict)
    """Loads that have come, by the segment that needs them and by their place."""
    labels: list[tuple[Piece, ...]] = field(default_factory=list)
    """Labels that have come, each a piece a tensor."""
    counts: Tensor | None = None
    """Counts of the batch's labels, where the loss goes by them; see `COUNTS`."""
    numbers: Tensor | None = None
    """Numbers of all samples of the batch, int32, where they enter and are kept or recalled by number."""
    fresh: dict[Cargo, Slots] = field(default_factory=dict)
    """Features and labels of the samples of the batch that were not here, until they are kept."""
    block_gradients: dict[int, BlockGradients] = field(default_factory=dict)
    """Gradients of this worker's own part, or of all parts once they are summed."""
    parts: dict[tuple[int, int], BlockPart] = field(default_factory=dict)
    """Parts of gradients that have come, by their block and their first sample."""
    given: dict[BlockSlice, BlockPart] = field(default_factory=dict)
    """Parts of a member that go on to its group as they came."""
    merged: dict[BlockSlice, BlockPart | CodedWeights] = field(default_factory=dict)
    """Weights of the group, which go on to a member as they came."""
    norms: BlockNorms = field(default_factory=dict)
    """Norms of the gradients of this worker's own blocks, and of those whose norms come to it."""
    coefficient: Tensor | None = None
    """Number by which gradients are scaled, where all are clipped by one norm."""
    scale: float | None = None
    """Number by which the loss is scaled, where it is."""
    rate_drops: int = 0
    """Times that the learning rate has been lowered before this step; see `Frame`."""
    label_count: float = 0.0
    """Number of the batch's labels that count, or their weight, in a group that weighs its members by that."""
    loss: BatchLoss | None = None
    """Loss of this worker's part."""


@dataclass(slots=True, eq=False)
class Parcel:
    """A load on its way from one worker to another, from the computation that makes it to the one that needs it."""

    step: int
    samples: int
    """Number of samples in the whole batch."""
    crossing: Crossing
    load: Load
    """Empty on the sender's side once it is encoded."""
    place: int = -1
    """Its place among all that the worker where it is sends, or receives, in a step; see `StepScheduler`."""
    scale: float | None = None
    """Scale of the step's loss, where it is scaled."""
    numbers: Tensor | None = None
    """Numbers of the samples of the batch, int32, where they enter."""
    encoded: EncodedSlots | None = None
    """The load as it is sent: encoded once, because a codec may draw random numbers."""
    raw_bytes: int = 0
    """Bytes, once decoded, of the tensors that have come."""
    rate_drops: int = 0
    """See `StepInFlight`."""
    label_count: float = 0.0
    """See `StepInFlight`."""
    waits: bool = False
    """True if it is sent with the feature of its step, and not before."""
