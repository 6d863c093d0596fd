"""The form of a feature or an error gradient: a tensor for each slot that crosses. Of a feature that was sent before, only what
has changed may cross: each end of the crossing keeps what the receiver has, and follows what is sent.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from shared.codec.changed import Changed
from shared.errors import ProtocolError
from shared.execution.crossing_types import CrossingTypes
from shared.execution.step_in_flight import EncodedSlots, Load
from shared.model.chain import Chain
from shared.model.spec import TensorSpec
from shared.placement import Cargo, Crossing, Placement
from shared.runtime.announcements import ExpectedTensor
from shared.runtime.form import Form, decoded_slots
from shared.training.kept_features import KeptFeatures


class FeatureForm(Form):
    """A feature or an error gradient. Some slots go raw; see `Chain.coded_slots`."""

    def __init__(
        self,
        crossing: Crossing,
        placement: Placement,
        codecs: Mapping[int, str],
        chain: Chain,
        types: CrossingTypes,
        *,
        recalls: bool = False,
    ) -> None:
        """recalls: True where the feature of samples that are kept is left out."""
        super().__init__(crossing, placement, codecs)
        self._recalls = recalls
        self._chain = chain
        self._specs = types.specs(crossing.index)
        self._is_gradient = crossing.cargo is Cargo.ERROR_GRADIENT
        self.tells_length = chain.lengths is not None

    def expected(self, step: int, slot: int, samples: int) -> ExpectedTensor:
        """See `Form.expected`."""
        spec, rows, lengths = self._specs[slot], self._rows(samples), self._chain.lengths
        whole = TensorSpec((rows, *spec.shape[1:]), spec.dtype)
        tensor: TensorSpec | Callable[[TensorSpec], None] = whole
        if rows and lengths is not None and lengths.varies(self.crossing.index, slot):
            tensor = partial(self._check_length, slot, whole)
        elif self._recalls:
            tensor = partial(_check_part, whole)
        return ExpectedTensor(
            self.key(step, slot), self.version, self.codecs[slot], tensor, may_be_absent=self._is_gradient
        )

    def decode(self, encoded: EncodedSlots) -> Load:
        """See `Form.decode`."""
        return tuple(map(decoded_slots(encoded).get, range(len(self._specs))))

    def length(self, slot: int, shape: Sequence[int]) -> int | None:
        """See `Form.length`."""
        if self._chain.lengths is None or not shape or not shape[0]:
            return None  # of a part without samples nothing has a length
        return self._chain.lengths.of(self.crossing.index, slot, shape)

    def worst_bytes(self, *, kept: bool) -> int:  # noqa: ARG002 - only weights are kept
        """See `Form.worst_bytes`."""
        total = 0
        for slot in self.slots:
            spec = self._specs[slot]
            tensor = TensorSpec((self.crossing.rows.count, *spec.shape[1:]), spec.dtype)
            encoded = self._codec_of[slot].encoded_bytes(tensor.shape, tensor.dtype)
            total += tensor.bytes + max(tensor.bytes, encoded)
        return total

    def _check_length(self, slot: int, longest: TensorSpec, tensor: TensorSpec) -> None:
        """Refuse a tensor that is not that of any length. longest: that of the greatest."""
        lengths, index = self._chain.lengths, self.crossing.index
        assert lengths is not None, "the caller has seen to it"
        length = lengths.of(index, slot, tensor.shape)
        if length is None or tensor != lengths.spec(index, slot, longest, length):
            raise ProtocolError(
                f"{self.crossing.cargo} {index} is {tensor.dtype} {tensor.shape}; {longest.dtype} {longest.shape} was "
                f"expected, or what it is for a length of 1 to {lengths.longest}"
            )


class ChangedFeatureForm(FeatureForm):
    """A feature of which the changes cross, in the slots that are coded. What was decoded may come again until `keep`."""

    def __init__(
        self,
        crossing: Crossing,
        placement: Placement,
        codecs: Mapping[int, str],
        chain: Chain,
        types: CrossingTypes,
        kept: KeptFeatures,
        above: float,
    ) -> None:
        """above: see `Changed.encode_since`."""
        super().__init__(crossing, placement, codecs, chain, types)
        self.keep = self._keep
        self._kept = kept
        self._above = above
        self._changed = {slot: codec for slot, codec in self._codec_of.items() if isinstance(codec, Changed)}
        name = f"feature {crossing.index} from {crossing.sender} to {crossing.receiver}"
        kept.begin(name, {slot: self._specs[slot] for slot in self._changed})

    def encode(self, load: Load, numbers: Tensor | None = None) -> EncodedSlots:
        """See `Form.encode`."""
        assert isinstance(load, tuple), "a feature is a tensor a slot"
        assert numbers is not None, "samples have numbers where they enter"
        encoded: EncodedSlots = {}
        for slot, codec in self._codec_of.items():
            tensor = load[slot]
            assert tensor is not None, "a feature is there as a whole"
            if isinstance(codec, Changed):
                since = self._kept.rows(slot, numbers.long())
                encoded[slot] = codec.encode_since(tensor.cpu(), numbers, *since, self._above)
            else:
                encoded[slot] = codec.encode(tensor.cpu())
        return encoded

    def decode(self, encoded: EncodedSlots) -> Load:
        """See `Form.decode`."""
        load: list[Tensor | None] = [None] * len(self._specs)
        for slot, each in encoded.items():
            codec = self._codec_of[slot]
            if each is not None and isinstance(codec, Changed):
                load[slot] = codec.decode_since(each, *self._kept.rows(slot, codec.numbers(each)))
            elif each is not None:
                load[slot] = codec.decode(each)
        return tuple(load)

    def _keep(self, encoded: EncodedSlots, load: Load) -> None:
        """Keep a feature that `decode` has returned, of the samples of which anything was sent: the others have it."""
        assert isinstance(load, tuple), "a feature is a tensor a slot"
        for slot, codec in self._changed.items():
            each, received = encoded[slot], load[slot]
            assert each is not None, "a feature is there as a whole"
            assert received is not None, "a feature is there as a whole"
            numbers, is_sent = codec.numbers(each), codec.is_sent(each)
            if is_sent.all():
                self._kept.keep(slot, numbers, received)
            else:
                self._kept.keep(slot, numbers[is_sent], received[is_sent])


def _check_part(whole: TensorSpec, tensor: TensorSpec) -> None:
    """Refuse a tensor that is not one of some samples of a batch. whole: that of all of them."""
    if not tensor.shape or tensor != TensorSpec((tensor.shape[0], *whole.shape[1:]), whole.dtype):
        raise ProtocolError(
            f"a feature is {tensor.dtype} {tensor.shape}; {whole.dtype} {whole.shape} was expected, or less"
        )
    if tensor.shape[0] > whole.shape[0]:
        raise ProtocolError(f"a feature of {tensor.shape[0]} samples came for a batch of {whole.shape[0]}")
