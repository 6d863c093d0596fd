"""The codecs that run, by name: one object each, made of its spec in `shared/registry/codecs.py`."""

from pkgutil import resolve_name

from shared.codec.base import Codec
from shared.registry import CODECS, codec_spec

_CODECS: dict[str, Codec] = {name: resolve_name(spec.implementation)(spec) for name, spec in CODECS.items()}


def codec_by_name(name: str) -> Codec:
    """The codec of that name. ConfigError that says which names there are."""
    return _CODECS[codec_spec(name).name]
