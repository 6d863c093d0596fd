"""The rights of tokens, as a command is told."""

from enum import StrEnum


class Scope(StrEnum):
    """The rights of a token. Every call needs exactly one of them."""

    TRAIN = "train"
    """Scope of an agent: open sessions and move tensors, with computing time and memory."""
    CONTROL = "control"
    """Change or end a session."""
    READ = "read"
    """Look at sessions, at the health of services and at the contract."""
    OPERATE = "operate"
    """Scope of an operator: see and end all sessions, and stop the trainer. No agent needs it."""


AN_AGENTS = (Scope.TRAIN, Scope.CONTROL, Scope.READ)
"""Scopes that an agent needs; they concern its own sessions only."""
