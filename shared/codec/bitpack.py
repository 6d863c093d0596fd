"""Small unsigned integers packed to the bit: `count` values of n bits in ceil(count * n / 8) bytes.

Neighbours do not share a byte. The values are divided into 8 / w lanes of equal length, and byte i of the result holds the
i-th value of every lane, so packing is a few additions of whole lanes, two bytes at a time: no value crosses its byte.
Widths w that divide 8 pack so at once; others are split by their binary digits (7 bits are 4 + 2 + 1), each part packed
in turn. The last values, fewer than 64, follow as a plain string of bits, lowest first. Paper 001 packs along the batch
and needs it divisible by 8; here any count goes.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from shared.codec.buffers import scratch

_BLOCK = 64
"""The lanes hold a multiple of this many values, so that every lane of every width has whole 2-byte words."""


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that `count` values of `bits` bits take."""
    return -(-count * bits // 8)


def pack(values: Tensor, bits: int, out: Tensor) -> None:
    """Write `values` (1-D uint8, each below 2^bits) into `out` (1-D uint8 of packed_bytes). bits: 1 to 7."""
    main = values.numel() // _BLOCK * _BLOCK
    words = values[:main].view(torch.int16)
    for width, shift, start in _parts(bits, main):
        field = words if width == bits else _field(words, width, shift)
        packed = out[start : start + main * width // 8].view(torch.int16)
        *lanes, last = field.view(8 // width, packed.numel()).unbind()
        torch.add(lanes[-1], last, alpha=1 << width, out=packed)
        for lane in reversed(lanes[:-1]):
            torch.add(lane, packed, alpha=1 << width, out=packed)
    tail = np.unpackbits(values[main:].numpy()[:, None], axis=1, count=bits, bitorder="little")
    out[main * bits // 8 :].numpy()[:] = np.packbits(tail, bitorder="little")


def unpack(packed: Tensor, bits: int, out: Tensor) -> None:
    """Write into `out` (1-D uint8) the values that `pack` was given. packed: 1-D uint8 of packed_bytes."""
    main = out.numel() // _BLOCK * _BLOCK
    words = out[:main].view(torch.int16)
    for width, shift, start in _parts(bits, main):
        field = words if shift == 0 else scratch.take("field", words.numel(), torch.int16)
        source = packed[start : start + main * width // 8].view(torch.int16)
        for at, lane in enumerate(field.view(8 // width, source.numel()).unbind()):
            torch.bitwise_right_shift(source, at * width, out=lane).bitwise_and_(_mask(width))
        if shift:
            words.add_(field, alpha=1 << shift)
    tail_count = out.numel() - main
    tail = np.unpackbits(packed[main * bits // 8 :].numpy(), count=tail_count * bits, bitorder="little")
    out[main:].numpy()[:] = np.packbits(tail.reshape(tail_count, bits), axis=1, bitorder="little")[:, 0]


def _parts(bits: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(width, lowest bit, first byte of the packed result) of each part that `bits` is split into."""
    shift = 0
    for width in (4, 2, 1):
        if bits & width:
            yield width, shift, count * shift // 8
            shift += width


def _field(words: Tensor, width: int, shift: int) -> Tensor:
    """The `width` bits from bit `shift` of every byte."""
    field = scratch.take("field", words.numel(), torch.int16)
    return torch.bitwise_right_shift(words, shift, out=field).bitwise_and_(_mask(width))


def _mask(width: int) -> int:
    """The lowest `width` bits of both bytes of a word."""
    return ((1 << width) - 1) * 0x0101
