"""Changes of each sample's feature since it was sent last, and the whole feature of a sample that was not sent before.

The sender knows what the receiver has, and encodes how the feature differs from that: what one message loses goes with the next
one, and nothing drifts. The payload begins with the number of each sample, int32, and what is sent of it, uint8, little-endian.
The whole features follow, one behind the other, and then the changes.
"""

from enum import IntEnum

import torch
from torch import Tensor

from shared.codec.base import Codec, Encoded, codec_by_name
from shared.codec.buffers import memory_of, tensor_over
from shared.codec.layout import contiguous_strides
from shared.codec.payload import check_bytes, check_claim, check_is_float
from shared.errors import ProtocolError
from shared.registry import SINCE, CodecSpec, by_sample

_HEAD_BYTES = 5
"""Bytes of a sample's number, and of what is sent of it."""


class SentPart(IntEnum):
    """Parts of a sample's feature that are sent."""

    NOTHING = 0
    CHANGE = 1
    WHOLE = 2


class Changed(Codec):
    """Whole features by the codec named before `SINCE`, and changes by the one behind it, each sample by itself."""

    QUICK_BYTES = 16 * 1024  # both are called once a sample

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__(spec)
        whole, change = spec.name.split(SINCE)
        self._codecs = {
            SentPart.WHOLE: codec_by_name(by_sample(whole)),
            SentPart.CHANGE: codec_by_name(by_sample(change)),
        }

    def encode(self, tensor: Tensor) -> Encoded:
        """See `Codec.encode`: of a receiver that has nothing, and samples that are numbered from 0 on."""
        check_is_float(self.name, tensor)
        count = len(tensor)
        return self.encode_since(tensor, torch.arange(count), tensor, torch.zeros(count, dtype=torch.bool), 0.0)

    def encode_since(self, tensor: Tensor, numbers: Tensor, kept: Tensor, is_kept: Tensor, above: float) -> Encoded:
        """Return what brings the receiver from the kept features to these.

        tensor, kept: [B, ...], of one type. numbers: of the samples, int [B]. is_kept: flag of each, bool [B]; of the others
        `kept` means nothing. above: nothing is sent of a sample whose change is no larger than this part of its feature, both
        by their Euclidean norm. Of a sample whose change has no finite norm, the whole feature is sent again. The strides are
        those of a contiguous tensor.
        """
        check_is_float(self.name, tensor)
        tensor, shape = tensor.detach().contiguous(), tuple(tensor.shape)
        change = tensor - kept
        moved, size = _norms(change), _norms(tensor)
        rests = (moved <= above * size) & size.isfinite()
        goes_on = is_kept & moved.isfinite()
        sent = torch.where(goes_on, torch.where(rests, SentPart.NOTHING, SentPart.CHANGE), SentPart.WHOLE).to(
            torch.uint8
        )
        parts = [memory_of(numbers.to(torch.int32)), memory_of(sent)]
        for what, of in ((SentPart.WHOLE, tensor), (SentPart.CHANGE, change)):
            if len(rows := (sent == what).nonzero().view(-1)):
                parts.append(self._codecs[what].encode(of[rows]).payload)
        payload = memoryview(b"".join(parts))
        return Encoded(self.name, tensor.dtype, shape, contiguous_strides(shape), payload)

    def numbers(self, encoded: Encoded) -> Tensor:
        """Return the numbers of the samples, int64 [B]. Raises ProtocolError for a payload that no peer could have encoded."""
        return self._head(encoded)[0]

    def is_sent(self, encoded: Encoded) -> Tensor:
        """Return a flag of each sample: whether anything is sent of it, bool [B]. Raises as `numbers` does."""
        return self._head(encoded)[1] != SentPart.NOTHING

    def decode(self, encoded: Encoded) -> Tensor:
        """See `Codec.decode`: where nothing is kept."""
        self._head(encoded)
        nothing = torch.zeros(encoded.shape, dtype=encoded.dtype)
        return self.decode_since(encoded, nothing, torch.zeros(len(nothing), dtype=torch.bool))

    def decode_since(self, encoded: Encoded, kept: Tensor, is_kept: Tensor) -> Tensor:
        """Return the features, [B, ...]; `kept` and `is_kept` as in `encode_since`, in the order of `numbers`.

        Raises ProtocolError where a feature is not sent whole and was not kept, and as `Codec.decode` does.
        """
        _, sent = self._head(encoded)
        if not is_kept[sent != SentPart.WHOLE].all():
            raise ProtocolError(
                f"payload of codec {self.name}: has the change of a sample of which no feature is kept here"
            )
        shape, dtype = encoded.shape, encoded.dtype
        rows = {what: (sent == what).nonzero().view(-1) for what in self._codecs}
        sizes = {
            what: codec.encoded_bytes((len(rows[what]), *shape[1:]), dtype) if len(rows[what]) else 0
            for what, codec in self._codecs.items()
        }
        begin = _HEAD_BYTES * shape[0]
        check_bytes(encoded, begin + sum(sizes.values()))
        features = kept.clone(memory_format=torch.contiguous_format)
        for what in (SentPart.WHOLE, SentPart.CHANGE):
            if count := len(rows[what]):
                of, codec = (count, *shape[1:]), self._codecs[what]
                payload = encoded.payload[begin : begin + sizes[what]]
                decoded = codec.decode(Encoded(codec.name, dtype, of, contiguous_strides(of), payload))
                features[rows[what]] = decoded if what is SentPart.WHOLE else features[rows[what]] + decoded
                begin += sizes[what]
        return features

    def encoded_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """See `Codec.encoded_bytes`: the most that a tensor may take."""
        one = (1, *shape[1:])
        return shape[0] * (_HEAD_BYTES + max(codec.encoded_bytes(one, dtype) for codec in self._codecs.values()))

    def _head(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Return the numbers of the samples and what is sent of each. Raises ProtocolError."""
        check_claim(encoded)
        if not encoded.shape or encoded.strides != contiguous_strides(encoded.shape):
            raise ProtocolError(
                f"payload of codec {self.name}: strides {encoded.strides} came; it sends samples without gaps"
            )
        count = encoded.shape[0]
        if encoded.payload.nbytes < _HEAD_BYTES * count:
            raise ProtocolError(
                f"payload of codec {self.name}: has {encoded.payload.nbytes} bytes; its head alone takes "
                f"{_HEAD_BYTES * count}"
            )
        if not count:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.uint8)
        head = tensor_over(encoded.payload[: _HEAD_BYTES * count])
        sent = head[4 * count :]
        if int(sent.max()) > SentPart.WHOLE:
            raise ProtocolError(
                f"payload of codec {self.name}: says {int(sent.max())} of a sample; {SentPart.WHOLE} is the most"
            )
        return head[: 4 * count].view(torch.int32).long(), sent


def _norms(tensor: Tensor) -> Tensor:
    """Return the Euclidean norm of each sample, float32 [B], or float64."""
    rows = tensor.reshape(len(tensor), -1) if tensor.numel() else tensor.new_zeros(len(tensor), 1)
    norms: Tensor = torch.linalg.vector_norm(rows if rows.dtype is torch.float64 else rows.float(), dim=1)
    return norms
