"""Errors for the person who reads them, and the exit codes that they end a process with.

Every error that a user can cause is an `IsthmusError`: one sentence that says what is wrong, where, and what would be
right. An entry point prints that sentence and exits with the error's code; `docs/exit-codes.md` lists the codes and a
test holds the two together. Anything else that escapes is a defect and keeps its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process of ours returns to its caller."""

    OK = 0
    INTERNAL = 1
    """A defect of ours: the traceback is printed."""
    USAGE = 2
    """Unknown command or flag."""
    CONFIG = 3
    """A configuration file, variable or flag holds a wrong key or value."""
    MODEL = 4
    """The model cannot be loaded, cut into blocks, or cut where it was asked to be."""
    DATA = 5
    """The dataset cannot be loaded, or failed while it was read."""
    LISTEN = 6
    """An address to listen on is in use or not ours."""
    UNREACHABLE = 7
    """The trainer cannot be reached."""
    PROTOCOL = 8
    """The peer speaks another version, or sent what the protocol forbids."""
    REFUSED = 9
    """The trainer understood and said no."""
    PLAN = 10
    """A profile, trace or link that cannot be planned with."""
    INTERRUPTED = 130
    """Stopped by the user."""


class IsthmusError(Exception):
    """Base of all errors that a user or a peer can cause."""

    exit_code = ExitCode.INTERNAL


class ConfigError(IsthmusError):
    """A wrong key or value in a configuration."""

    exit_code = ExitCode.CONFIG


class ModelError(IsthmusError):
    """A model that cannot be loaded, cut or run."""

    exit_code = ExitCode.MODEL


class NotAllowedError(ModelError):
    """A factory that the trainer's operator has not allowed."""


class DataError(IsthmusError):
    """A dataset that cannot be loaded or failed while it was read."""

    exit_code = ExitCode.DATA


class ListenError(IsthmusError):
    """An address that cannot be listened on."""

    exit_code = ExitCode.LISTEN


class UnreachableError(IsthmusError):
    """A trainer that does not answer."""

    exit_code = ExitCode.UNREACHABLE


class ProtocolError(IsthmusError):
    """A peer that breaks the wire contract."""

    exit_code = ExitCode.PROTOCOL


class RefusedError(IsthmusError):
    """A request that the trainer understood and refused."""

    exit_code = ExitCode.REFUSED


class PlanError(IsthmusError):
    """A profile, trace or link that cannot be planned with."""

    exit_code = ExitCode.PLAN
