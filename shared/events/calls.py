"""The events of calls: those made to trainers, and those that come to a server."""

from dataclasses import dataclass

import grpc

from shared.errors import IsthmusError
from shared.events.dispatcher import Event


@dataclass(frozen=True, slots=True)
class CallFailed(Event):
    """A call to a trainer has failed."""

    code: grpc.StatusCode


@dataclass(frozen=True, slots=True)
class TrainersAwaited(Event):
    """Calls wait for trainers that cannot be reached, or wait no more."""

    reasons: tuple[str, ...]
    """A sentence for each cause, which names the trainer; empty where nothing waits."""


@dataclass(frozen=True, slots=True)
class CallMade(Event):
    """A call has come to a server, whether it is admitted or not."""

    peer: str
    """The caller's address, with its port."""


@dataclass(frozen=True, slots=True)
class CallRefused(Event):
    """A server has refused a call."""

    method: str
    host: str
    error: IsthmusError
