"""Loads of shared blocks on the wire: every tensor as it lies, and nothing else than the block has."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from shared.codec import codec_by_name
from shared.errors import ProtocolError
from shared.execution.group_weights import GroupWeights
from shared.execution.shared_blocks import CodedWeights, added, part_layout, part_of, weights_layout, weights_of
from shared.model.chain import Block, build_chain
from shared.model.spec import TensorSpec
from shared.placement import BlockSlice, Cargo, Crossing, Placement, Route, Rows, Source, Tile
from shared.runtime.announcements import check_announcement
from shared.runtime.block_entries import BlockEntry, entries_of
from shared.runtime.crossing_wire import CrossingWire
from shared.tensor_wire import to_wire
from shared.training import block_state
from shared.training.held_blocks import HeldBlocks
from shared.training.slices import whole
from shared.transport.stream.framing import chunks
from tests.support.placed import CPU, recipe

HALVES = Placement(
    version=3,
    blocks=2,
    batch_size=4,
    workers=("edge", "near"),
    tiles=(Tile("edge", 0, 2, Rows(0, 2)), Tile("near", 0, 2, Rows(2, 4))),
    sources=(Source("edge", Rows(0, 4)),),
    owners=dict.fromkeys(range(2), "near"),
)
PART = Crossing("edge", "near", Cargo.WEIGHT_GRADIENT, 0, Rows(0, 2))
WEIGHTS = Crossing("near", "edge", Cargo.WEIGHTS, 0, Rows(0, 2))


def wire(down: str = "raw") -> CrossingWire:
    first = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten())
    first[0].bias.requires_grad_(False)
    chain = build_chain(nn.Sequential(first, nn.Linear(12, 2)), torch.zeros(4, 1, 3, 3))
    placement = dataclasses.replace(HALVES, codecs={Route("near", "edge", Cargo.WEIGHTS): down})
    return CrossingWire(placement, chain, lambda _labels: None, recipe("sgd"))


def block_of(wire: CrossingWire) -> Block:
    return wire.chain.blocks[0]


def gradients(block: Block) -> dict[str, Tensor]:
    """Gradients of all that learns, the first one with strides of its own."""
    layout = part_layout(block)
    found = {name.removeprefix("gradient/"): torch.randn_like(layout[name]) for name in layout if "gradient/" in name}
    first = next(name for name, tensor in found.items() if tensor.dim() == 4)
    return found | {first: found[first].to(memory_format=torch.channels_last)}


def test_a_part_and_weights_arrive_as_they_left_with_their_strides():
    both = wire()
    block = block_of(both)
    coded = wire("uniform8")
    for ends, crossing, load in (
        (both, PART, part_of(block, gradients(block))),
        (both, WEIGHTS, weights_of(block)),
        (coded, WEIGHTS, weights_of(block)),
    ):
        encoded = ends.encode(crossing, load)
        assert tuple(encoded) == ends.slots(crossing)
        arrived = ends.decode(crossing, encoded)
        assert arrived.keys() == load.keys()
        for name, tensor in load.items():
            assert torch.equal(arrived[name], tensor)
            assert (arrived[name].stride(), arrived[name].dtype) == (tensor.stride(), tensor.dtype)


def test_what_a_member_lacks_of_weights_arrives_as_a_difference_and_buffers_as_they_are():
    both = wire("uniform8")
    block = block_of(both)
    weights = GroupWeights(HeldBlocks(both.chain, recipe("sgd"), CPU, range(2)), "uniform8")
    before = weights.of(BlockSlice(0))
    for tensor in weights_layout(block).values():
        tensor += torch.randn(tensor.shape).to(tensor.dtype)
    load = weights.updated(BlockSlice(0))
    assert isinstance(load, CodedWeights)
    encoded = both.encode(WEIGHTS, load)
    for slot, entry in enumerate(both.entries(WEIGHTS)):
        frame, _ = next(chunks(to_wire(encoded[slot], both.key(WEIGHTS, 7, slot), HALVES.version, 4), 1 << 20))
        check_announcement(frame, both.expected(WEIGHTS, 7, slot, 4))
        assert frame.tensor.codec == ("uniform8" if entry.name.startswith("parameter/") else "raw")
        assert entry.name not in load.differences or encoded[slot] is load.differences[entry.name]
    other = block_of(wire())
    block_state.restore(other, None, None, before)
    block_state.restore(other, None, None, added(other, both.decode(WEIGHTS, encoded), whole(other)))
    for name, tensor in weights_layout(other).items():
        assert torch.equal(tensor, weights.of(BlockSlice(0))[name]), name


@pytest.mark.parametrize("codec", ["uniform4", "bf16"])
def test_weights_come_by_the_codec_that_is_agreed_or_as_they_are_and_gradients_by_theirs_alone(codec):
    both = wire("uniform8")
    slot, entry = next(each for each in enumerate(both.entries(WEIGHTS)) if each[1].name.startswith("parameter/"))
    tensor = weights_of(block_of(both))[entry.name]
    key, expected = both.key(WEIGHTS, 7, slot), both.expected(WEIGHTS, 7, slot, 4)
    wrong, _ = next(chunks(to_wire(codec_by_name(codec).encode(tensor), key, HALVES.version, 4), 1 << 20))
    with pytest.raises(ProtocolError, match=f"encoded as '{codec}'; 'uniform8' is agreed"):
        check_announcement(wrong, expected)
    smaller, _ = next(chunks(to_wire(codec_by_name("raw").encode(tensor[:1]), key, HALVES.version, 4), 1 << 20))
    with pytest.raises(ProtocolError, match="was expected"):
        check_announcement(smaller, expected)
    coded = dataclasses.replace(HALVES, codecs={Route("edge", "near", Cargo.WEIGHT_GRADIENT): "uniform8"})
    up = CrossingWire(coded, both.chain, lambda _labels: None, recipe("sgd"))
    slot, entry = next(each for each in enumerate(up.entries(PART)) if each[1].is_gradient)
    tensor = part_layout(block_of(up))[entry.name]
    whole, _ = next(
        chunks(to_wire(codec_by_name("raw").encode(tensor), up.key(PART, 7, slot), HALVES.version, 4), 1 << 20)
    )
    with pytest.raises(ProtocolError, match="'uniform8' is agreed"):
        check_announcement(whole, up.expected(PART, 7, slot, 4))


def test_nothing_is_copied_on_the_way_into_the_wire():
    both = wire()
    load = weights_of(block_of(both))
    for slot, entry in enumerate(both.entries(WEIGHTS)):
        payload = both.encode(WEIGHTS, load)[slot].payload
        load[entry.name].reshape(-1).view(torch.uint8)[:1] ^= 0xFF
        assert payload[0] == load[entry.name].reshape(-1).view(torch.uint8)[0]


def test_a_part_has_no_tensor_of_a_parameter_that_does_not_learn_and_no_state_of_an_optimizer():
    names = [entry.name for entry in wire().entries(PART)]
    assert names == sorted(names)
    assert not any("0.0.bias" in name or "optimizer" in name for name in names)
    assert any(name.startswith("buffer/") for name in names)


@pytest.mark.parametrize("samples", [4, 1])
def test_a_gradient_that_nothing_reaches_is_absent_and_of_a_part_without_samples_all_is(samples):
    both = wire()
    block = block_of(both)
    load = part_of(block, {}) if samples == 4 else {}
    for slot, encoded in both.encode(PART, load).items():
        tensor = to_wire(encoded, both.key(PART, 7, slot), HALVES.version, samples)
        frame, _ = next(chunks(tensor, 1 << 20))
        check_announcement(frame, both.expected(PART, 7, slot, samples))
        assert (encoded is None) == (samples == 1 or both.entries(PART)[slot].is_gradient)


@pytest.mark.parametrize("crossing", [PART, WEIGHTS], ids=["part", "weights"])
def test_buffers_and_weights_have_to_come_and_of_the_blocks_own_shape(crossing):
    both = wire()
    slot = next(slot for slot, entry in enumerate(both.entries(crossing)) if not entry.is_gradient)
    expected = both.expected(crossing, 7, slot, 4)
    absent, _ = next(chunks(to_wire(None, both.key(crossing, 7, slot), HALVES.version, 4), 1 << 20))
    with pytest.raises(ProtocolError, match="said to be absent"):
        check_announcement(absent, expected)
    block = block_of(both)
    load = part_of(block, {}) if crossing is PART else weights_of(block)
    name = both.entries(crossing)[slot].name
    larger = {**load, name: load[name].repeat((2,) * max(load[name].dim(), 1))}
    encoded = both.encode(crossing, larger)[slot]
    frame, _ = next(chunks(to_wire(encoded, both.key(crossing, 7, slot), HALVES.version, 4), 1 << 20))
    with pytest.raises(ProtocolError, match="was expected"):
        check_announcement(frame, expected)


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(2, 3, dtype=torch.complex64), torch.tensor(2 + 1j), torch.randn(*(1,) * 8, 2)],
    ids=["complex", "scalar", "nine dimensions"],
)
def test_a_tensor_that_the_contract_does_not_have_goes_as_its_bytes(tensor):
    entry = BlockEntry("parameter/odd", TensorSpec.of(tensor), is_gradient=False)
    sent = entry.to_wire(tensor)
    assert TensorSpec.of(sent) == entry.sent == TensorSpec((tensor.nbytes,), torch.uint8)
    assert torch.equal(entry.from_wire(sent), tensor)


def test_both_sides_count_the_slots_by_name():
    block = block_of(wire())
    for cargo in (Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS):
        assert [one.name for one in entries_of(block, cargo)] == sorted(one.name for one in entries_of(block, cargo))
