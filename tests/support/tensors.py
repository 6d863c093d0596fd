"""Tensors that codecs carry: a strategy of all kinds, and how two are compared bit by bit."""

import torch
from hypothesis import strategies as st

from shared.codec import Encoded, aligned_buffer, codec_by_name
from shared.registry import codec_names

LOSSLESS = tuple(name for name in codec_names() if not codec_by_name(name).spec.lossy)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
names = st.sampled_from(codec_names())
seeds = st.integers(0, 2**32 - 1)


def made(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).mul(10).to(dtype)


def of_family(family):
    """Any codec of a family."""
    return st.sampled_from([codec for name in codec_names() if (codec := codec_by_name(name)).spec.family == family])


@st.composite
def tensors(draw, dtypes=FLOATS, expanded=True):
    """Tensors dense and not: dimensions in any order, every second element, a part of a larger one, expanded."""
    shape = draw(st.lists(st.integers(0, 5), max_size=5))
    tensor = made(shape, draw(st.sampled_from(dtypes)), draw(seeds))
    if shape:
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
        dim = draw(st.integers(0, len(shape) - 1))
        change = draw(st.sampled_from(["none", "step", "part", *(["expand"] if expanded else [])]))
        if change == "step":
            tensor = tensor[(slice(None),) * dim + (slice(None, None, 2),)]
        elif change == "part" and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 1, tensor.shape[dim] - 1)
        elif change == "expand":
            tensor = tensor.unsqueeze(dim).expand(*tensor.shape[:dim], 3, *tensor.shape[dim:])
    return tensor


def is_dense(tensor):
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) == tensor.numel()


def bits_of(tensor):
    dense = torch.empty(tensor.numel(), dtype=tensor.dtype)
    dense.view(tensor.shape).copy_(tensor)
    return bytes(dense.view(torch.uint8).numpy())


def same_bits(one, other):
    return one.dtype == other.dtype and bits_of(one) == bits_of(other)


def carried(encoded, payload=None, **changes):
    """The description and the bytes as a peer receives them."""
    received = aligned_buffer(encoded.payload.nbytes if payload is None else len(payload))
    received[:] = encoded.payload if payload is None else payload
    fields = {name: getattr(encoded, name) for name in ("codec", "dtype", "shape", "strides")}
    return Encoded(**(fields | changes), payload=received)
