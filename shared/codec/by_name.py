"""The codecs that run, by name: one object each, made of its spec in `shared/registry/codecs.py`."""

from functools import cache
from pkgutil import resolve_name

from shared.codec.base import Codec
from shared.registry import codec_spec


@cache
def codec_by_name(name: str) -> Codec:
    """The codec of that name. ConfigError that says which names there are."""
    spec = codec_spec(name)
    codec: Codec = resolve_name(spec.implementation)(spec)
    return codec
