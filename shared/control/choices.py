"""Values that the commands of the control services take, and their timeouts; apart from the calls and answers."""

from enum import StrEnum

SOON_SECONDS = 30.0
"""The time for calls that are answered at once."""
LEAST_SECONDS, MOST_SECONDS = 0.05, 3600.0
"""Bounds of the interval of a watch."""


class LevelName(StrEnum):
    """A level of the log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
