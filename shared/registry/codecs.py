"""The codecs by name, with the facts of each that need no run.

A new codec is a file in `shared/codec/` and its line here.
"""

from dataclasses import dataclass, replace

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The known facts of a codec; `Codec.encoded_bytes` gives the size of an encoded tensor."""

    name: str
    """In configurations and on the wire."""
    family: str
    """Codecs of one family differ in their bits alone, so the engine may exchange one for another."""
    bits: int
    """Bits of one element of a float32 tensor, heads and tables not counted. Planning uses this number."""
    implementation: str
    """The class of the codec, as `package.module:name`; it takes this spec."""
    lossy: bool
    """True if a float32 tensor loses anything, so that error feedback has an error to work on."""
    by_channel: bool = False
    """True if each index of dimension 1 is treated by itself, and not the tensor as a whole."""
    stochastic: bool = False
    """True if the bytes depend on random numbers too (`seed_stochastic_rounding`). That is all the state a codec may
    have: one object serves every session and thread, and checkpoints hold nothing of it."""
    by_element: bool = False
    """True if each element is encoded by itself, so that it is the same in every batch."""
    varies: bool = False
    """True if a payload may be smaller than `Codec.encoded_bytes` says."""


_RAW, _CAST, _UNIFORM = "shared.codec.floating:Raw", "shared.codec.floating:Cast", "shared.codec.uniform:Uniform"


def _uniform(bits: int, *, by_channel: bool, stochastic: bool) -> CodecSpec:
    variant = f"{'-channel' * by_channel}{'-stochastic' * stochastic}"
    return CodecSpec(f"uniform{bits}{variant}", f"uniform{variant}", bits, _UNIFORM, True, by_channel, stochastic)


CODECS: dict[str, CodecSpec] = {
    spec.name: spec
    for spec in (
        CodecSpec("raw", "raw", 32, _RAW, lossy=False, by_element=True),
        CodecSpec("fp32", "fp32", 32, _CAST, lossy=False, by_element=True),
        CodecSpec("fp16", "fp16", 16, _CAST, lossy=True, by_element=True),
        CodecSpec("bf16", "bf16", 16, _CAST, lossy=True, by_element=True),
        *(
            _uniform(bits, by_channel=by_channel, stochastic=stochastic)
            for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16)
            for by_channel in (False, True)
            for stochastic in (False, True)
        ),
        *(CodecSpec(f"mbq{bits}", "mbq", bits, "shared.codec.mbq:Mbq", lossy=True) for bits in (2, 3, 4)),
        *(CodecSpec(f"topk{bits}", "topk", bits, "shared.codec.topk:TopK", lossy=True) for bits in (1, 2, 4, 8)),
    )
}

BY_SAMPLE = "-by-sample"
"""End of the name of a codec that encodes each sample of a batch as the codec named before encodes a batch. No configuration
names it: both sides take it where what is sent must not depend on the batch (`deployment.recall`)."""
_BY_SAMPLE = {
    f"{spec.name}{BY_SAMPLE}": replace(
        spec, name=f"{spec.name}{BY_SAMPLE}", implementation="shared.codec.by_sample:BySample"
    )
    for spec in CODECS.values()
    if not spec.by_element
}

SINCE = "-since-"
"""Middle of the name of a codec that encodes what has changed of each sample since it was sent last: the codec before it is for
a sample that was not sent, the one behind it for changes (`shared.codec.changed`). No configuration names it."""

_FALLBACK_ORDER = ("fp32", "uniform")
"""Families in which a codec of a width is searched for in this order, before any other, where the wanted family has none."""


def codec_names() -> tuple[str, ...]:
    """Every name that a configuration may have."""
    return tuple(CODECS)


def codec_spec(name: str) -> CodecSpec:
    """Return the facts of the codec of that name. Raises ConfigError, which lists the names that a configuration may have."""
    whole, since, change = name.partition(SINCE)
    try:
        if since:
            of_change, _ = CODECS[change], CODECS[whole]
            return CodecSpec(name, name, of_change.bits, "shared.codec.changed:Changed", lossy=True, varies=True)
        return CODECS[name] if name in CODECS else _BY_SAMPLE[name]
    except KeyError:
        raise ConfigError(f"codec {name!r} does not exist; there are {', '.join(CODECS)}") from None


def by_sample(name: str) -> str:
    """Name the codec that encodes each sample of a batch by itself as this one encodes a batch. ConfigError as `codec_spec`."""
    return name if codec_spec(name).by_element else f"{name}{BY_SAMPLE}"


def codec_bits(name: str) -> int:
    """Bits that the codec of that name makes of one element of a float32 tensor. ConfigError as `codec_spec`."""
    return codec_spec(name).bits


def bit_widths() -> tuple[int, ...]:
    """The bits that an element may have on the link, rising."""
    return tuple(sorted({spec.bits for spec in CODECS.values()}))


def codec_of_bits(bits: int, like: str) -> str:
    """The name of the codec with so many bits an element, of the family of `like` where that has one.

    ConfigError for an unknown `like`, and for bits that are none of `bit_widths`.
    """
    given = codec_spec(like)
    if given.bits == bits:
        return like
    of_width = [spec for spec in CODECS.values() if spec.bits == bits]
    if not of_width:
        raise ConfigError(f"no codec has {bits} bits an element; there are {', '.join(map(str, bit_widths()))}")
    preferred = (given.family, *_FALLBACK_ORDER)
    rank = {family: -place for place, family in enumerate(preferred)}
    return max(of_width, key=lambda spec: rank.get(spec.family, -len(preferred))).name
