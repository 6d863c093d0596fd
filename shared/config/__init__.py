"""Configuration: typed sections, loading them from a file, the environment and flags, and describing them."""

from shared.config.describe import first_complaint
from shared.config.keys import Key, Table, example_toml, tables
from shared.config.load import load_config
from shared.config.section import (
    AddressPattern,
    Config,
    ControlAddress,
    FactoryName,
    GroupName,
    ListenAddress,
    OneOf,
    PeerAddress,
    Section,
    ShortSection,
    is_allowed,
    is_loopback,
)
from shared.config.sections import (
    MAX_CHUNK_BYTES,
    CheckpointsConfig,
    ComputeConfig,
    ControlConfig,
    LinkConfig,
    LogConfig,
    MetricsConfig,
    WebConfig,
)
from shared.config.toml import parse_toml, toml_value

__all__ = [
    "MAX_CHUNK_BYTES",
    "AddressPattern",
    "CheckpointsConfig",
    "ComputeConfig",
    "Config",
    "ControlAddress",
    "ControlConfig",
    "FactoryName",
    "GroupName",
    "Key",
    "LinkConfig",
    "ListenAddress",
    "LogConfig",
    "MetricsConfig",
    "OneOf",
    "PeerAddress",
    "Section",
    "ShortSection",
    "Table",
    "WebConfig",
    "example_toml",
    "first_complaint",
    "is_allowed",
    "is_loopback",
    "load_config",
    "parse_toml",
    "tables",
    "toml_value",
]
