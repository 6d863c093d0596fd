"""The form in which one crossing travels: its codecs, its slots, and the tensor that may come in each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from shared.codec import codec_by_name
from shared.execution.step_in_flight import EncodedSlots, Load
from shared.placement import Cargo, Crossing, Placement
from shared.registry import codec_spec
from shared.runtime.announcements import ExpectedTensor
from shared.transport.stream.framing import TensorKey
from shared.wire.isthmus.v1.tensor_pb2 import Role

ROLES = {
    Cargo.FEATURE: Role.ROLE_FEATURE,
    Cargo.ERROR_GRADIENT: Role.ROLE_ERROR_GRADIENT,
    Cargo.LABEL: Role.ROLE_LABEL,
    Cargo.WEIGHT_GRADIENT: Role.ROLE_WEIGHT_GRADIENT,
    Cargo.WEIGHTS: Role.ROLE_WEIGHTS,
    Cargo.NORMS: Role.ROLE_NORMS,
    Cargo.COEFFICIENT: Role.ROLE_COEFFICIENT,
    Cargo.SCALE: Role.ROLE_SCALE,
}


class Form(ABC):
    """The form in which one crossing travels. Each kind of cargo has one of its own."""

    def __init__(self, crossing: Crossing, placement: Placement, codecs: Mapping[int, str]) -> None:
        """codecs: the name of each tensor's codec, by slot."""
        self.crossing = crossing
        self.version = placement.version
        """Version of the placement."""
        self.codecs = codecs
        self.slots = tuple(codecs)
        """The slots that cross, in their order."""
        self.role = ROLES[crossing.cargo]
        self._batch_size = placement.batch_size
        self.early = int(crossing.cargo is Cargo.WEIGHTS)
        """Steps by which its key is early: weights bear the step that they are for, and there is none before the first."""
        self.tells_length = False
        """True if `length` can tell the length of a batch."""
        self.keep: Callable[[EncodedSlots, Load], None] | None = None
        """Keeps what the receiver has from here on: a load that `decode` has returned, sent or here for good. Called in the
        order of steps; None where nothing is kept."""
        named = {name: codec_by_name(name) for name in ("raw", *codecs.values())}
        self._codec_of = {slot: named[name] for slot, name in codecs.items()}
        self.is_lossless = not any(codec_spec(name).lossy for name in codecs.values())
        """True if no codec takes anything from the tensors, so that to encode and to decode them takes no time."""
        self.quick_bytes = min((named[name].QUICK_BYTES for name in codecs.values()), default=named["raw"].QUICK_BYTES)
        """Largest size of a load that is coded or copied quicker than it is handed to another thread."""

    def key(self, step: int, slot: int) -> TensorKey:
        """Return the key of a tensor in the stream."""
        return TensorKey(step + self.early, self.role, self.crossing.index, slot)

    def first_key(self, step: int) -> TensorKey:
        """Return the key of the first tensor: its slot tells apart what one block reads."""
        return self.key(step, self.slots[0])

    @abstractmethod
    def expected(self, step: int, slot: int, samples: int) -> ExpectedTensor:
        """Describe the tensor that must come for one slot. samples: of the whole batch."""

    def encode(self, load: Load, numbers: Tensor | None = None) -> EncodedSlots:  # noqa: ARG002 - for changes of samples
        """Return the tensors of a load by slot. numbers: of the samples of the batch, int32 [B]. Computes.

        To be called once for a gradient of weights: what its codec takes from it goes with the next one.
        """
        assert isinstance(load, tuple), "the loads of shared blocks have a form of their own"
        encoded: EncodedSlots = {}
        for slot, codec in self._codec_of.items():
            tensor = load[slot]
            encoded[slot] = None if tensor is None else codec.encode(tensor.cpu())
        return encoded

    @abstractmethod
    def decode(self, encoded: EncodedSlots) -> Load:
        """Return the load of these slots. Computes. Raises ProtocolError for bytes that no peer could have encoded."""

    def length(self, slot: int, shape: Sequence[int]) -> int | None:  # noqa: ARG002 - only features have one
        """Return the length of a batch, by the shape of one of its tensors; None where that does not tell it."""
        return None

    @abstractmethod
    def worst_bytes(self, *, kept: bool) -> int:
        """Count the bytes of a load at its worst: as it travels, and as it was decoded.

        kept: the receiver may begin again, so that weights of the step before are there, too.
        """

    def _rows(self, samples: int) -> int:
        return self.crossing.rows.scaled(samples, self._batch_size).count


def decoded_slots(encoded: EncodedSlots) -> dict[int, Tensor]:
    """Decode each tensor that is there. Raises ProtocolError for bytes that no peer could have encoded."""
    return {slot: codec_by_name(each.codec).decode(each) for slot, each in encoded.items() if each is not None}
