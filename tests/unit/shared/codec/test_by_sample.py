"""Each sample of a batch by itself: it is the same whatever batch it comes in, for every codec."""

import pytest
import torch

from shared.codec import codec_by_name
from shared.errors import ConfigError, ProtocolError
from shared.registry import by_sample, codec_names, codec_spec

SAMPLES = torch.randn(5, 3, 4, 2, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 6).view(5, 1, 1, 1)
STEADY = [name for name in codec_names() if not codec_spec(name).stochastic]


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_sample_is_what_its_codec_makes_of_it_alone(name, layout):
    codec, alone = codec_by_name(by_sample(name)), codec_by_name(name)
    batch = SAMPLES.contiguous(memory_format=layout)
    encoded = codec.encode(batch)
    assert len(encoded.payload) == codec.encoded_bytes(tuple(batch.shape), batch.dtype)
    expected = torch.cat([alone.decode(alone.encode(sample[None].contiguous())) for sample in SAMPLES])
    assert torch.equal(codec.decode(encoded), expected)
    assert torch.equal(codec.decode(codec.encode(batch[3:4])), expected[3:4])


@pytest.mark.parametrize("name", ["uniform8", "mbq2", "topk1", "fp32"])
def test_there_may_be_no_sample(name):
    codec = codec_by_name(by_sample(name))
    encoded = codec.encode(SAMPLES[:0])
    assert codec.encoded_bytes((0, 3, 4, 2), torch.float32) == len(encoded.payload) == 0
    assert codec.decode(encoded).shape == (0, 3, 4, 2)


def test_a_payload_of_another_size_or_with_gaps_is_refused():
    codec = codec_by_name(by_sample("uniform8"))
    encoded = codec.encode(SAMPLES)
    for wrong in ({"payload": encoded.payload[:-1]}, {"strides": (48, 16, 4, 2)}, {"shape": (), "strides": ()}):
        with pytest.raises(ProtocolError, match="uniform8-by-sample"):
            codec.decode(type(encoded)(**{**{key: getattr(encoded, key) for key in encoded.__slots__}, **wrong}))


def test_no_configuration_names_it():
    assert not [name for name in codec_names() if name.endswith("by-sample")]
    assert by_sample("fp16") == "fp16", "each element is what it is in any batch"
    with pytest.raises(ConfigError):
        codec_spec("fp16-by-sample")
