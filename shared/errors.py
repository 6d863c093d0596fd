"""Errors for the person who reads them, and the exit codes that they end a process with.

Every error that a user can cause is an `IsthmusError`: one sentence that says what is wrong, where, and what would be
right. An entry point prints that sentence and exits with the error's code; `docs/operations.md` lists the codes and a
test holds the two together. Anything else that escapes is a defect and keeps its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Status that a process of ours returns to its caller."""

    OK = 0
    INTERNAL = 1
    """A defect of ours: the traceback is printed."""
    USAGE = 2
    """Unknown command or flag."""
    CONFIG = 3
    """A configuration file, variable or flag holds a wrong key or value."""
    MODEL = 4
    """The model cannot be loaded or divided into blocks, it has no cut where one is asked for, or it failed in training."""
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
    """A profile, a trace or a link that cannot be planned with."""
    ACCESS = 11
    """The trainer does not know this agent, or the two do not trust each other's certificates."""
    BUSY = 12
    """The trainer has no room now; it said when to try again."""
    STORAGE = 13
    """A file that must outlive the process cannot be written or read."""
    UNFIT = 14
    """`edge-agent doctor` has found something that must be fixed."""
    GONE = 15
    """The trainer no longer has the session, and no further attempt brings it back."""
    DIVERGED = 16
    """The loss is no finite number any more, so training further would be of no use."""
    DEVICE = 17
    """A trainer's GPU can compute nothing more in this process; another process can."""
    DIFFERENT = 18
    """A replay comes to other weights than the run did, or cannot follow its record, or an export computes otherwise."""
    FAILED = 19
    """The trainer failed at what was asked of it, or what it sent was damaged, several times without a step between."""
    INTERRUPTED = 130
    """Stopped by the user."""
    TERMINATED = 143
    """Stopped by SIGTERM before it was done."""


class IsthmusError(Exception):
    """Base of all errors that a user or a peer can cause."""

    exit_code = ExitCode.INTERNAL


class ConfigError(IsthmusError):
    """A wrong key or value in a configuration."""

    exit_code = ExitCode.CONFIG


class ModelError(IsthmusError):
    """A model that cannot be loaded, divided into blocks or run."""

    exit_code = ExitCode.MODEL


class DeviceError(ModelError):
    """A model or loss after which the device that ran it can compute nothing more in this process."""

    exit_code = ExitCode.DEVICE


class NotAllowedError(ModelError):
    """A factory that the trainer's operator has not allowed."""


class TooLargeError(ModelError):
    """A model that takes more modules, memory or time to build than the trainer's operator gives."""


class DataError(IsthmusError):
    """A dataset that cannot be loaded or failed while it was read."""

    exit_code = ExitCode.DATA


class ListenError(IsthmusError):
    """An address that cannot be listened on."""

    exit_code = ExitCode.LISTEN


class UnreachableError(IsthmusError):
    """A trainer that does not answer; `retry_after_seconds` is when it may, where it has said so."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, sentence: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(sentence)
        self.retry_after_seconds = retry_after_seconds


class UnansweredError(UnreachableError):
    """A trainer that has left a call unanswered for longer than it may."""


class ProtocolError(IsthmusError):
    """A peer that breaks the wire contract."""

    exit_code = ExitCode.PROTOCOL


class VersionError(ProtocolError):
    """A trainer that speaks another version of the protocol; `theirs` is that one."""

    retry_after_seconds = 0.0
    """A trainer does not know when it, or the other side, is upgraded."""

    def __init__(self, sentence: str, theirs: int = 0) -> None:
        super().__init__(sentence)
        self.theirs = theirs


class FailedError(ProtocolError):
    """A peer that failed at something, by a defect or for what its machine lacks, which may pass."""

    exit_code = ExitCode.FAILED


class StalledError(IsthmusError):
    """A trainer that answers, and has done nothing for longer than a run waits for it."""

    exit_code = ExitCode.FAILED


class DamagedMessageError(FailedError):
    """A message whose checksum or encoding is wrong."""


class OutOfTurnError(ProtocolError):
    """A tensor, or the position of a link, of another step or of another deployment than the one that is due."""


class RefusedError(IsthmusError):
    """A request of ours that the trainer understood and refused; the trainer's own side raises `StatusError`."""

    exit_code = ExitCode.REFUSED


class FencedError(RefusedError):
    """A session that is not for this agent to go on with now: another one has attached it since, an operator closed it, or its
    step made the trainer's device fail."""


class OutdatedTermError(FencedError):
    """A session that another agent has had since, with `term`, and that no agent has now."""

    def __init__(self, sentence: str, term: int = 0) -> None:
        super().__init__(sentence)
        self.term = term


class SessionLostError(RefusedError):
    """The trainer holds no such session in its memory; it may have checkpoints of it."""


class NotStoredError(RefusedError):
    """A block of a checkpoint that the trainer does not have, or has damaged."""


class GoneError(RefusedError):
    """A session of which the trainer has nothing from which the edge could go on."""

    exit_code = ExitCode.GONE


class ClosedError(GoneError):
    """A session that an operator of the trainer has closed for good."""


class StoppedError(IsthmusError):
    """A run that was told to stop and did; `exit_code` becomes INTERRUPTED where it was not a service manager's word."""

    exit_code = ExitCode.TERMINATED


class PlanError(IsthmusError):
    """A profile, trace or link that cannot be planned with."""

    exit_code = ExitCode.PLAN


class AccessError(IsthmusError):
    """A trainer that does not know us, or that we do not trust."""

    exit_code = ExitCode.ACCESS


class TicketError(AccessError):
    """A ticket that the trainer does not know: the session that it was for is not in memory, or was joined again since."""


class BusyError(RefusedError):
    """A trainer that has no room now; `retry_after_seconds` is when it may have."""

    exit_code = ExitCode.BUSY

    def __init__(self, sentence: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(sentence)
        self.retry_after_seconds = retry_after_seconds


class StorageError(IsthmusError):
    """A checkpoint or a session's record that cannot be written or read."""

    exit_code = ExitCode.STORAGE


class DifferentError(IsthmusError):
    """A computation that comes to other numbers than it has to: of a recorded run, or of an exported model."""

    exit_code = ExitCode.DIFFERENT


class UnfitError(IsthmusError):
    """A device, or a way to its trainer, that cannot train as it is."""

    exit_code = ExitCode.UNFIT


class DivergedError(IsthmusError):
    """A training whose loss or weights are no finite numbers any more since `step`."""

    exit_code = ExitCode.DIVERGED

    def __init__(self, sentence: str, step: int = 0) -> None:
        super().__init__(sentence)
        self.step = step


class StepLogError(StorageError):
    """A step log that shows a step missing, applied twice or out of order, or that is none."""


_MAX_SENTENCE_BYTES = 2000
"""A status of gRPC is dropped when it has more than 8 KiB, and each byte beyond ASCII is sent as three."""


def one_line(text: str) -> str:
    """Return `text` as a status can carry it and a terminal may show it, even if it comes from a peer or a user's code."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return printable.encode()[:_MAX_SENTENCE_BYTES].decode(errors="ignore")
