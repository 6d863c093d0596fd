"""Configuration: typed sections, loading them from a file, the environment and flags, and describing them."""

from shared.config.example import example_toml
from shared.config.load import load_config
from shared.config.section import Config, FactoryName, ListenAddress, PeerAddress, Section
from shared.config.sections import MAX_CHUNK_BYTES, ComputeConfig, LinkConfig, LogConfig, MetricsConfig

__all__ = [
    "MAX_CHUNK_BYTES",
    "ComputeConfig",
    "Config",
    "FactoryName",
    "LinkConfig",
    "ListenAddress",
    "LogConfig",
    "MetricsConfig",
    "PeerAddress",
    "Section",
    "example_toml",
    "load_config",
]
