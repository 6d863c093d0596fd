"""The codecs by name. A new codec is a file of its own and its line here."""

from shared.codec import floating, uniform
from shared.codec.base import Codec
from shared.errors import ConfigError

CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        *floating.CODECS,
        *uniform.CODECS,
    )
}

_FALLBACK_ORDER = ("fp32", "uniform")
"""Where a family has no codec of a width, these are searched for one in this order, before any other."""


def codec_names() -> tuple[str, ...]:
    """Every name that `codec_by_name` knows."""
    return tuple(CODECS)


def codec_by_name(name: str) -> Codec:
    """The codec of that name. ConfigError that says which names there are."""
    try:
        return CODECS[name]
    except KeyError:
        raise ConfigError(f"codec {name!r} does not exist; there are {', '.join(CODECS)}") from None


def is_lossy(name: str) -> bool:
    """Whether a float32 tensor loses anything on its way through the codec of that name. ConfigError as `codec_by_name`."""
    return codec_by_name(name).spec.lossy


def codec_bits(name: str) -> int:
    """Bits that the codec of that name makes of one element of a float32 tensor. ConfigError as `codec_by_name`."""
    return codec_by_name(name).spec.bits


def codec_family(name: str) -> str:
    """The family of the codec of that name. ConfigError as `codec_by_name`."""
    return codec_by_name(name).spec.family


def bit_widths() -> tuple[int, ...]:
    """The bits that an element may have on the link, rising."""
    return tuple(sorted({codec.spec.bits for codec in CODECS.values()}))


def codec_of_bits(bits: int, like: str) -> str:
    """The name of the codec with so many bits an element, of the family of `like` where that has one.

    ConfigError for an unknown `like`, and for bits that are none of `bit_widths`.
    """
    given = codec_by_name(like).spec
    if given.bits == bits:
        return like
    of_width = [codec.spec for codec in CODECS.values() if codec.spec.bits == bits]
    if not of_width:
        raise ConfigError(f"no codec has {bits} bits an element; there are {', '.join(map(str, bit_widths()))}")
    preferred = (given.family, *_FALLBACK_ORDER)
    rank = {family: -place for place, family in enumerate(preferred)}
    return max(of_width, key=lambda spec: rank.get(spec.family, -len(preferred))).name
