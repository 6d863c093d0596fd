"""Files of tensors: read as the library reads and refused where it refuses, and nothing is copied on the way."""

import json
import subprocess
import sys

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.codec.buffers import aligned_buffer
from shared.errors import ProtocolError
from shared.training.state_file import deserialize, serialize
from tests.conftest import ROOT
from tests.fuzz.damage import damaged, json_files

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool)
ROOM = 1 << 16
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and found[name].shape == tensor.shape and bits(found[name]) == bits(tensor)
        for name, tensor in expected.items()
    )


def bits(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def a_file(head, tensors=bytes(8)):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + tensors


@st.composite
def tensors(draw):
    """Draw some tensors of any type and shape, scalars and empty ones too."""
    names = draw(st.lists(st.text(max_size=8), unique=True, max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return {
        name: torch.randint(0, 2, draw(st.lists(st.integers(0, 3), max_size=3)), generator=generator).to(
            draw(st.sampled_from(DTYPES))
        )
        for name in names
    }


@given(tensors())
def test_the_library_and_this_module_read_what_the_other_writes(given_tensors):
    assert same(deserialize(serialize(given_tensors), ROOM), given_tensors)
    assert same(safetensors.torch.load(serialize(given_tensors)), given_tensors)
    assert same(deserialize(safetensors.torch.save(given_tensors, {"any": "thing"}), ROOM), given_tensors)


GOOD = serialize(
    {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(3), "flag": torch.ones(3, dtype=torch.bool)}
)
HEAD_BYTES = int.from_bytes(GOOD[:8], "little")
heads = json_files(json.loads(GOOD[8 : 8 + HEAD_BYTES])).map(lambda text: a_file(text, GOOD[8 + HEAD_BYTES :]))


@given(damaged(GOOD) | heads)
def test_whatever_the_library_refuses_is_refused_and_the_rest_is_read_as_it_does(data):
    try:
        expected = safetensors.torch.load(data)
    except Exception:
        with pytest.raises(ProtocolError, match="no safetensors file"):
            deserialize(data, ROOM)
        return
    assert same(deserialize(data, ROOM), expected)


def test_tensors_lie_over_the_memory_that_came():
    data = aligned_buffer(len(GOOD))
    data[:] = GOOD
    found = deserialize(data, ROOM)
    data[8 + HEAD_BYTES :] = bytes(len(GOOD) - 8 - HEAD_BYTES)
    assert not any(tensor.any() for tensor in found.values())


def test_a_tensor_at_an_odd_place_is_copied_to_where_it_can_be_read():
    head = {"byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "two": {**ENTRY, "data_offsets": [1, 9]}}
    values = torch.tensor([1.5, -2.0])
    found = deserialize(a_file(head, b"\7" + bits(values)), ROOM)
    assert torch.equal(found["two"], values)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "end at byte 8 of 0"),
        (b"\1\0\0", "end at byte 9 of 3"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "of 10"),
        (a_file(b"[1]", b""), "no JSON object"),
        (a_file(b"{", b""), "no JSON:"),
        (a_file(b"[" * 50_000, b""), "no JSON:"),
        (a_file(b"\xff{}", b""), "no JSON:"),
        (a_file({"a": 3}), "'a' has no dtype, shape and data_offsets"),
        (a_file({"a": {**ENTRY, "more": 1}}), "data_offsets, or more"),
        (a_file({"a": {**ENTRY, "dtype": "F33"}}), "type 'F33'"),
        (a_file({"a": {**ENTRY, "shape": [-2]}}), "no size"),
        (a_file({"a": {**ENTRY, "shape": [True, 2]}}), "no size"),
        (a_file({"a": {**ENTRY, "shape": [2.0]}}), "no size"),
        (a_file({"a": {**ENTRY, "shape": [3]}}), "12 bytes by its shape and type, and 8 by its place"),
        (a_file({"a": {**ENTRY, "data_offsets": [8, 0]}}), "8 bytes by its shape and type, and -8"),
        (a_file({"a": ENTRY, "b": ENTRY}), "'b' begins at byte 0 of the tensors; it must begin at 8"),
        (a_file({"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)), "'a' begins at byte 4"),
        (a_file({"a": ENTRY}, bytes(9)), "8 bytes, and 9 are there"),
        (a_file({"a": ENTRY}, bytes(7)), "8 bytes, and 7 are there"),
        (a_file({"a": {**ENTRY, "shape": [0, 2**64], "data_offsets": [0, 0]}}, b""), "no size"),
    ],
)
def test_anything_else_is_refused_in_a_sentence(data, reason):
    with pytest.raises(ProtocolError) as refused:
        deserialize(data, ROOM)
    assert str(refused.value).startswith("the state of a block is no safetensors file: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize(("room", "fits"), [(HEAD_BYTES, True), (HEAD_BYTES - 1, False)])
def test_a_head_with_more_than_the_receiver_expects_is_not_read(room, fits):
    if fits:
        deserialize(GOOD, room)
    else:
        with pytest.raises(ProtocolError, match=f"its head has {HEAD_BYTES} bytes; it may have {room}"):
            deserialize(GOOD, room)


def test_saving_loads_no_module_on_its_thread():
    """NumPy has one that two threads must not ask for at once."""
    program = (
        "import sys, torch\n"
        "from shared.training.state_file import serialize\n"
        "before = set(sys.modules)\n"
        "serialize({'0/weight': torch.ones(2)})\n"
        "print(*(set(sys.modules) - before))\n"
    )
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
