"""Changes of samples: the receiver follows the sender, whatever is left out, and takes nothing that was not sent."""

import pytest
import torch

from shared.codec import codec_by_name
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.tensor_wire import check_encoding, to_wire
from shared.training.kept_features import KeptFeatures
from shared.transport.stream.framing import TensorKey
from shared.wire.isthmus.v1.tensor_pb2 import Frame

SAMPLES, SHAPE = 12, (3, 5)
HEAD = 5


class End:
    """One end of a crossing: a codec, with what is kept there."""

    def __init__(self, name, dtype=torch.float32, above=0.0):
        self.codec, self.above = codec_by_name(name), above
        self.kept = KeptFeatures(SAMPLES)
        self.kept.begin("one", {0: TensorSpec((4, *SHAPE), dtype)})

    def send(self, numbers, features):
        numbers = torch.tensor(numbers)
        return self.codec.encode_since(features, numbers, *self.kept.rows(0, numbers), self.above)

    def take(self, encoded):
        numbers = self.codec.numbers(encoded)
        features = self.codec.decode_since(encoded, *self.kept.rows(0, numbers))
        self.kept.keep(0, numbers, features)
        return features


def drawn(count, seed=0, dtype=torch.float32):
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


NAMES = ["uniform8-since-topk1", "fp16-since-uniform4", "raw-since-fp32", "mbq4-since-mbq2"]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if row == column else pytest.mark.slow)
        for row, name in enumerate(NAMES)
        for column, dtype in enumerate(DTYPES)
    ],
)
def test_both_ends_have_the_same_and_what_one_message_loses_goes_with_the_next(name, dtype):
    sender, receiver, moving = End(name, dtype), End(name, dtype), drawn(SAMPLES, 1, torch.float64)
    for epoch in range(60):
        for numbers in ([0, 3, 7], [1, 5], [9, 2, 11, 4], [10, 8, 6]):
            features = moving[numbers].to(dtype)
            encoded = sender.send(numbers, features)
            assert len(encoded.payload) <= receiver.codec.encoded_bytes(encoded.shape, dtype)
            assert torch.equal(sender.take(encoded), receiver.take(encoded))
        moving += 0.3 * drawn(SAMPLES, epoch, torch.float64) * (epoch < 3)
    error = (receiver.take(sender.send(range(SAMPLES), moving.to(dtype))).double() - moving).abs().max()
    assert error < (2e-2 if dtype is torch.bfloat16 else 5e-3)


def test_a_sample_is_sent_whole_once_and_then_its_change():
    sender, features = End("fp32-since-uniform8"), drawn(2)
    sender.take(sender.send([0, 1], features))
    sender_of_three = sender.send([0, 1, 2], torch.cat((features + 1, features[:1])))
    whole, change = 4 * 15, 8 + 8 + 15
    assert len(sender_of_three.payload) == 3 * HEAD + whole + 2 * change


def test_nothing_is_sent_of_a_sample_that_has_moved_no_more_than_a_part_of_its_feature():
    sender, features = End("fp32-since-fp32", above=0.1), torch.ones(3, *SHAPE)
    sender.take(sender.send([0, 1, 2], features))
    moved = features * torch.tensor([1.0, 1.05, 1.5]).view(3, 1, 1)
    encoded = sender.send([0, 1, 2], moved)
    assert len(encoded.payload) == 3 * HEAD + 4 * 15
    assert torch.equal(sender.take(encoded)[:, 0, 0], torch.tensor([1.0, 1.0, 1.5]))
    moved[0, 0, 0] = torch.nan
    assert sender.take(sender.send([0], moved[:1])).isnan().any(), "what is no number is never left out"


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 60000.0])
@pytest.mark.parametrize("above", [0.0, 0.2])
@pytest.mark.parametrize("name", ["raw-since-topk1", "raw-since-uniform8"])
def test_a_feature_beyond_its_type_spoils_no_later_one(name, above, value):
    sender, receiver = End(name, torch.float16, above), End(name, torch.float16, above)
    usual = drawn(1, dtype=torch.float16)
    spike = usual.clone()
    spike[0, 0] = torch.tensor([value, -value, 0.0, 0.0, 0.0])
    for features in (usual, spike, -spike, *(usual,) * 20):
        encoded = sender.send([3], features)
        received = receiver.take(encoded)
        assert torch.equal(received.isfinite(), features.isfinite())
        sender.take(encoded)
    assert (received - usual).norm() <= max(above, 0.02) * usual.norm()


def test_a_feature_whose_norm_is_beyond_its_type_is_never_left_out():
    sender, usual = End("fp32-since-fp32", above=0.2), torch.ones(1, *SHAPE)
    sender.take(sender.send([0], usual))
    for value in (1e30, 2e38):
        spike = usual.clone()
        spike[0, 0, 0] = value
        assert torch.equal(sender.take(sender.send([0], spike)), spike)


def test_where_nothing_is_kept_it_is_a_codec_of_whole_features():
    codec, features = codec_by_name("uniform8-since-topk1"), drawn(4)
    each = codec_by_name("uniform8")
    decoded = codec.decode(codec.encode(features))
    assert torch.equal(decoded, torch.cat([each.decode(each.encode(one)) for one in features.split(1)]))
    assert codec.decode(codec.encode(features[:0])).shape == (0, *SHAPE)


def altered(encoded, at, value):
    payload = bytearray(encoded.payload)
    payload[at] = value
    return type(encoded)(encoded.codec, encoded.dtype, encoded.shape, encoded.strides, memoryview(bytes(payload)))


def test_what_no_peer_could_have_encoded_is_refused_and_nothing_of_it_is_kept():
    sender, receiver, features = End("fp32-since-fp32"), End("fp32-since-fp32"), drawn(2)
    first = sender.send([0, 1], features)
    sender.take(first)
    with pytest.raises(ProtocolError, match="change of a sample of which no feature is kept here"):
        receiver.take(sender.send([0, 1], features + 1))
    for bad, sentence in [
        (altered(first, 0, SAMPLES), f"none of the {SAMPLES} of the data set"),
        (altered(first, 3, 0xFF), f"none of the {SAMPLES} of the data set"),
        (altered(first, 4 * 2, 3), "says 3 of a sample"),
        (altered(first, 4 * 2, 0), "no feature is kept here"),
    ]:
        with pytest.raises(ProtocolError, match=sentence):
            receiver.take(bad)
    for payload in (first.payload[:7], first.payload[:-1], bytes(first.payload) + b"0"):
        with pytest.raises(ProtocolError, match="bytes"):
            receiver.take(type(first)(first.codec, first.dtype, first.shape, first.strides, memoryview(payload)))
    with pytest.raises(ProtocolError, match="without gaps"):
        receiver.take(type(first)(first.codec, first.dtype, first.shape, (1, 10, 2), first.payload))
    assert not receiver.kept.rows(0, torch.arange(SAMPLES))[1].any()
    assert torch.equal(receiver.take(first), features)


def test_an_announcement_may_be_of_fewer_bytes_than_a_whole_feature_takes_and_never_of_more():
    sender, features = End("fp32-since-topk1"), drawn(2)
    sender.take(sender.send([0, 1], features))
    tensor = to_wire(sender.send([0, 1], features + 1), TensorKey(0, 1, 1, 0), 0)
    most = sender.codec.encoded_bytes((2, *SHAPE), torch.float32)
    frame = Frame(tensor=tensor.header)
    check_encoding(frame, sender.codec, most)
    frame.tensor.encoded_bytes = most + 1
    with pytest.raises(ProtocolError, match="announces"):
        check_encoding(frame, sender.codec, 2 * most)
