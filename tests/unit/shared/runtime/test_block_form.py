"""Loads of shared blocks on the wire: every tensor as it lies, and nothing else than the block has."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from cloud_trainer.groups.group_weights import GroupWeights
from shared.codec import Encoded, codec_by_name
from shared.errors import ProtocolError
from shared.execution.shared_blocks import CodedWeights, added, part_layout, part_of, weights_layout, weights_of
from shared.model.chain import Block, Chain, build_chain
from shared.model.spec import TensorSpec
from shared.placement import BlockSlice, Cargo, Crossing, Placement, Route, Rows, Source, Tile
from shared.runtime.announcements import check_announcement
from shared.runtime.block_form import BlockEntry, BlockForm, entries_of
from shared.runtime.forms import Forms
from shared.tensor_wire import to_wire
from shared.training import block_state
from shared.training.held_blocks import HeldBlocks
from shared.training.slices import whole
from shared.transport.stream.framing import chunks
from shared.wire.isthmus.v1.tensor_pb2 import Frame
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


def chain_of() -> Chain:
    first = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten())
    first[0].bias.requires_grad_(False)
    return build_chain(nn.Sequential(first, nn.Linear(12, 2)), torch.zeros(4, 1, 3, 3))


def form_of(crossing: Crossing, chain: Chain, codec: str = "raw") -> BlockForm:
    route = Route(crossing.sender, crossing.receiver, crossing.cargo)
    placement = dataclasses.replace(HALVES, codecs={route: codec})
    form = Forms(placement, chain, lambda _labels: None, recipe("sgd")).of(crossing)
    assert isinstance(form, BlockForm)
    return form


def gradients(block: Block) -> dict[str, Tensor]:
    """Gradients of all that learns, the first one with strides of its own."""
    layout = part_layout(block)
    found = {name.removeprefix("gradient/"): torch.randn_like(layout[name]) for name in layout if "gradient/" in name}
    first = next(name for name, tensor in found.items() if tensor.dim() == 4)
    return found | {first: found[first].to(memory_format=torch.channels_last)}


def test_a_part_and_weights_arrive_as_they_left_with_their_strides():
    chain = chain_of()
    block = chain.blocks[0]
    for crossing, codec, load in (
        (PART, "raw", part_of(block, gradients(block))),
        (WEIGHTS, "raw", weights_of(block)),
        (WEIGHTS, "uniform8", weights_of(block)),
    ):
        form = form_of(crossing, chain, codec)
        encoded = form.encode(load)
        assert tuple(encoded) == form.slots
        arrived = form.decode(encoded)
        assert arrived.keys() == load.keys()
        for name, tensor in load.items():
            assert torch.equal(arrived[name], tensor)
            assert (arrived[name].stride(), arrived[name].dtype) == (tensor.stride(), tensor.dtype)


def test_what_a_member_lacks_of_weights_arrives_as_a_difference_and_buffers_as_they_are():
    chain = chain_of()
    form, block = form_of(WEIGHTS, chain, "uniform8"), chain.blocks[0]
    weights = GroupWeights(HeldBlocks(chain, recipe("sgd"), CPU, range(2)), "uniform8")
    before = weights.of(BlockSlice(0))
    for tensor in weights_layout(block).values():
        tensor += torch.randn(tensor.shape).to(tensor.dtype)
    load = weights.updated(BlockSlice(0))
    assert isinstance(load, CodedWeights)
    encoded = form.encode(load)
    for slot, entry in form.entries.items():
        frame = announced(form, slot, encoded[slot])
        check_announcement(frame, form.expected(7, slot, 4))
        assert frame.tensor.codec == ("uniform8" if entry.name.startswith("parameter/") else "raw")
        assert entry.name not in load.differences or encoded[slot] is load.differences[entry.name]
    other = chain_of().blocks[0]
    block_state.restore(other, None, None, before)
    block_state.restore(other, None, None, added(other, form.decode(encoded), whole(other)))
    for name, tensor in weights_layout(other).items():
        assert torch.equal(tensor, weights.of(BlockSlice(0))[name]), name


@pytest.mark.parametrize("codec", ["uniform4", "bf16"])
def test_weights_come_by_the_codec_that_is_agreed_or_as_they_are_and_gradients_by_theirs_alone(codec):
    chain = chain_of()
    down, up, block = form_of(WEIGHTS, chain, "uniform8"), form_of(PART, chain, "uniform8"), chain.blocks[0]
    slot, entry = next(each for each in down.entries.items() if each[1].name.startswith("parameter/"))
    tensor, expected = weights_of(block)[entry.name], down.expected(7, slot, 4)
    with pytest.raises(ProtocolError, match=f"encoded as '{codec}'; 'uniform8' is agreed"):
        check_announcement(announced(down, slot, codec_by_name(codec).encode(tensor)), expected)
    with pytest.raises(ProtocolError, match="was expected"):
        check_announcement(announced(down, slot, codec_by_name("raw").encode(tensor[:1])), expected)
    slot, entry = next(each for each in up.entries.items() if each[1].is_gradient)
    gradient = part_layout(block)[entry.name]
    with pytest.raises(ProtocolError, match="'uniform8' is agreed"):
        check_announcement(announced(up, slot, codec_by_name("raw").encode(gradient)), up.expected(7, slot, 4))


def test_nothing_is_copied_on_the_way_into_the_wire():
    chain = chain_of()
    form, load = form_of(WEIGHTS, chain), weights_of(chain.blocks[0])
    for slot, entry in form.entries.items():
        payload = form.encode(load)[slot].payload
        load[entry.name].reshape(-1).view(torch.uint8)[:1] ^= 0xFF
        assert payload[0] == load[entry.name].reshape(-1).view(torch.uint8)[0]


def test_a_part_has_no_tensor_of_a_parameter_that_does_not_learn_and_no_state_of_an_optimizer():
    names = [entry.name for entry in form_of(PART, chain_of()).entries.values()]
    assert names == sorted(names)
    assert not any("0.0.bias" in name or "optimizer" in name for name in names)
    assert any(name.startswith("buffer/") for name in names)


@pytest.mark.parametrize("samples", [4, 1])
def test_a_gradient_that_nothing_reaches_is_absent_and_of_a_part_without_samples_all_is(samples):
    chain = chain_of()
    form = form_of(PART, chain)
    load = part_of(chain.blocks[0], {}) if samples == 4 else {}
    for slot, encoded in form.encode(load).items():
        check_announcement(announced(form, slot, encoded, samples), form.expected(7, slot, samples))
        assert (encoded is None) == (samples == 1 or form.entries[slot].is_gradient)


@pytest.mark.parametrize("crossing", [PART, WEIGHTS], ids=["part", "weights"])
def test_buffers_and_weights_have_to_come_and_of_the_blocks_own_shape(crossing):
    chain = chain_of()
    form, block = form_of(crossing, chain), chain.blocks[0]
    slot = next(slot for slot, entry in form.entries.items() if not entry.is_gradient)
    expected = form.expected(7, slot, 4)
    with pytest.raises(ProtocolError, match="said to be absent"):
        check_announcement(announced(form, slot, None), expected)
    load = part_of(block, {}) if crossing is PART else weights_of(block)
    name = form.entries[slot].name
    larger = {**load, name: load[name].repeat((2,) * max(load[name].dim(), 1))}
    with pytest.raises(ProtocolError, match="was expected"):
        check_announcement(announced(form, slot, form.encode(larger)[slot]), expected)


def announced(form: BlockForm, slot: int, encoded: Encoded | None, samples: int = 4) -> Frame:
    """Return the announcement of a tensor of step 7."""
    frame, _ = next(chunks(to_wire(encoded, form.key(7, slot), HALVES.version, samples), 1 << 20))
    return frame


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
    block = chain_of().blocks[0]
    for cargo in (Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS):
        assert [one.name for one in entries_of(block, cargo)] == sorted(one.name for one in entries_of(block, cargo))
