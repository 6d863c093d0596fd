"""Each sample of a batch as another codec encodes it: what is sent of one does not depend on the batch that it came in.

The payload is that of each sample, one behind the other. All have one size, because a codec's payload follows from the shape.
"""

import torch
from torch import Tensor

from shared.codec.base import Codec, Encoded, codec_by_name
from shared.codec.layout import contiguous_strides
from shared.codec.payload import check_bytes, check_claim
from shared.errors import ProtocolError
from shared.registry import BY_SAMPLE, CodecSpec


class BySample(Codec):
    """The codec named before `BY_SAMPLE`, once for each index of dimension 0."""

    QUICK_BYTES = 16 * 1024  # it is called once a sample

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__(spec)
        self._each = codec_by_name(spec.name.removesuffix(BY_SAMPLE))

    def encode(self, tensor: Tensor) -> Encoded:
        """See `Codec.encode`. The strides are those of a contiguous tensor, whatever the tensor's are."""
        shape, samples = tuple(tensor.shape), tensor.detach().contiguous()
        payload = b"".join(self._each.encode(sample[None]).payload for sample in samples)
        return Encoded(self.name, tensor.dtype, shape, contiguous_strides(shape), memoryview(payload))

    def decode(self, encoded: Encoded) -> Tensor:
        """See `Codec.decode`."""
        check_claim(encoded)
        shape, dtype = encoded.shape, encoded.dtype
        if not shape or encoded.strides != contiguous_strides(shape):
            raise ProtocolError(
                f"payload of codec {self.name}: strides {encoded.strides} came; it sends samples without gaps"
            )
        check_bytes(encoded, self.encoded_bytes(shape, dtype))
        decoded, one = torch.empty(shape, dtype=dtype), (1, *shape[1:])
        each, strides, name = self._each.encoded_bytes(one, dtype), contiguous_strides(one), self._each.name
        for number, sample in enumerate(decoded):
            payload = encoded.payload[number * each : (number + 1) * each]
            sample.copy_(self._each.decode(Encoded(name, dtype, one, strides, payload))[0])
        return decoded

    def encoded_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """See `Codec.encoded_bytes`."""
        return shape[0] * self._each.encoded_bytes((1, *shape[1:]), dtype)
