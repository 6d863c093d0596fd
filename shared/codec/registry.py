"""The codecs by name. A new codec is a file of its own and its line here."""

import torch

from shared.codec import floating, uniform
from shared.codec.base import Codec
from shared.errors import ConfigError

_CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        *floating.CODECS,
        *uniform.CODECS,
    )
}

_BITS_PROBE = 1 << 16
"""Elements of the tensor that a codec's bits are told from: enough that its head does not count."""


def codec_names() -> tuple[str, ...]:
    """Every name that `codec_by_name` knows."""
    return tuple(_CODECS)


def codec_by_name(name: str) -> Codec:
    """The codec of that name. ConfigError that says which names there are."""
    try:
        return _CODECS[name]
    except KeyError:
        raise ConfigError(f"codec {name!r} does not exist; there are {', '.join(_CODECS)}") from None


def is_lossy(name: str) -> bool:
    """Whether a float32 tensor loses anything on its way through the codec of that name."""
    return name not in ("raw", "fp32")


def codec_bits(name: str) -> int:
    """Bits that the codec of that name makes of one element of a float32 tensor. ConfigError as `codec_by_name`."""
    return round(codec_by_name(name).encoded_bytes((_BITS_PROBE,), torch.float32) * 8 / _BITS_PROBE)
