"""Sections of a configuration, and the kinds of value that sections of both sides use.

A section is an immutable pydantic model whose fields each carry a docstring with their reason, and their unit in their
name. It knows nothing of files, variables or flags.
"""

import ipaddress
import re
from collections.abc import Callable, Collection
from pathlib import PurePath
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from shared.config.docstrings import docstring_of

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_MAX_PORT = 65535


class Section(BaseModel):
    """Base of all sections. Strict: a string is not a number and `true` is not 1; an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,  # a command reads few of the sections that it imports
    )

    @classmethod
    def describe_key(cls, key: str) -> str | None:
        """Return the description of a field where it has one, else its docstring; None where it has neither."""
        return cls.model_fields[key].description or docstring_of(cls, key)


def _tell_short_key(schema: dict[str, Any], cls: type[Any]) -> None:
    schema.update(short=cls.short_key, allowed=f"a {cls.short_key} or a table")


class ShortSection(Section):
    """Base of sections of which one key, as text, may stand for the whole table; the others are at their defaults then.

    A field that is a tuple or a path says `strict=False`, because to look for text makes values of Python of what was JSON.
    """

    model_config = ConfigDict(json_schema_extra=_tell_short_key)

    short_key: ClassVar[str] = "name"
    """The key."""

    @model_validator(mode="before")
    @classmethod
    def _text_is_the_short_key(cls, values: Any) -> Any:
        return {cls.short_key: values} if isinstance(values, str | PurePath) else values


class OneOf:
    """In the type of a field (`Annotated[str, OneOf(names)]`): the value must be one of some that registries have."""

    def __init__(self, values: Collection[str | int]) -> None:
        self._values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "allowed": self._allowed()}

    def _check(self, value: str | int) -> str | int:
        if value not in self._values:
            raise ValueError(f"must be {self._allowed()}")
        return value

    def _allowed(self) -> str:
        return f"one of {', '.join(map(str, self._values))}"


class Config(Section):
    """Base of the two roots, one a side."""

    environment_prefix: ClassVar[str]
    """Prefix of the environment variables that set keys of this configuration."""


def _check_address(lowest_port: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        match = _HOST_PORT.fullmatch(text)
        if not match or not lowest_port <= int(match[2]) <= _MAX_PORT:
            raise ValueError("not an address")
        return text

    return check


def _check_pattern(text: str) -> str:
    host, _, port = text.rpartition(":")
    if "*" in host:
        raise ValueError("not an address")
    _check_address(lowest_port=1)(f"{host}:1" if port == "*" else text)
    return text


def is_allowed(address: str, patterns: Collection[str]) -> bool:
    """Tell whether this is an address, host:port, that one of the patterns names."""
    try:
        _check_address(lowest_port=1)(address)
    except ValueError:
        return False
    return address in patterns or f"{address.rpartition(':')[0]}:*" in patterns


def is_loopback(address: str) -> bool:
    """Tell whether host:port is certain to be this machine's own; no name but localhost is looked up."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_control(text: str) -> str:
    if text in ("auto", "none") or (text.startswith("unix:/") and text != "unix:/"):
        return text
    if not is_loopback(_check_address(lowest_port=0)(text)):
        raise ValueError("not this machine's")
    return text


# `allowed` is what an error message and the example file say that a value must be.
PeerAddress = Annotated[
    str,
    AfterValidator(_check_address(lowest_port=1)),
    Field(json_schema_extra={"allowed": f"host:port with a port of 1 to {_MAX_PORT}"}),
]
AddressPattern = Annotated[
    str,
    AfterValidator(_check_pattern),
    Field(json_schema_extra={"allowed": f"host:port with a port of 1 to {_MAX_PORT}, or host:* for every port"}),
]
ListenAddress = Annotated[
    str,
    AfterValidator(_check_address(lowest_port=0)),
    Field(json_schema_extra={"allowed": f"host:port with a port of 0 (any free one) to {_MAX_PORT}"}),
]
ControlAddress = Annotated[
    str,
    AfterValidator(_check_control),
    Field(json_schema_extra={"allowed": "auto, none, unix:/path/of/a/socket or host:port on loopback"}),
]
GroupName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_-]{1,63}$", json_schema_extra={"allowed": "1 to 63 letters, digits, - and _"})
]
FactoryName = Annotated[
    str, Field(pattern=r"^[^\s:]+:[^\s:]+$", json_schema_extra={"allowed": "written as package.module:factory"})
]
