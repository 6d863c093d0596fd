"""The changes of a feature on their way: each end of the crossing keeps what the receiver has, and follows what is sent."""

from collections.abc import Mapping

from torch import Tensor

from shared.codec import Encoded, codec_by_name
from shared.codec.changed import Changed
from shared.model.spec import TensorSpec
from shared.training.kept_features import KeptFeatures


class ChangedSlots:
    """The slots of one crossing that are encoded as `Changed`. What was decoded may come again until `keep`."""

    def __init__(
        self, crossing: str, slots: Mapping[int, TensorSpec], codec: str, above: float, kept: KeptFeatures
    ) -> None:
        """crossing: its name. slots: those with changes, each with its tensor of a batch. above: see `Changed.encode_since`."""
        found = codec_by_name(codec)
        assert isinstance(found, Changed), "the caller has named one"
        self.slots = frozenset(slots)
        self.codec = codec
        self._codec = found
        self._above = above
        self._kept = kept
        kept.begin(crossing, slots)

    def encode(self, slot: int, tensor: Tensor, numbers: Tensor) -> Encoded:
        """Encode what has changed of a feature. numbers: of the samples of the batch, int32 [B]."""
        return self._codec.encode_since(tensor, numbers, *self._kept.rows(slot, numbers.long()), self._above)

    def decode(self, slot: int, encoded: Encoded) -> Tensor:
        """Return the feature that the receiver then has. Raises ProtocolError for bytes that no peer could have encoded."""
        return self._codec.decode_since(encoded, *self._kept.rows(slot, self._codec.numbers(encoded)))

    def keep(self, slot: int, encoded: Encoded, received: Tensor) -> None:
        """Keep a feature that `decode` has returned, of the samples of which anything was sent: the others have it."""
        numbers, is_sent = self._codec.numbers(encoded), self._codec.is_sent(encoded)
        if is_sent.all():
            self._kept.keep(slot, numbers, received)
        else:
            self._kept.keep(slot, numbers[is_sent], received[is_sent])
