"""The judge of a trainer's answers: no part of an answer is used before its form and bounds are checked here.

Each method returns its argument, or raises ProtocolError that names the trainer, the call and the field. The meaning of
a field to a session, as the digests of its blocks, is judged elsewhere; tensors are judged by `shared.tensor_wire`.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from shared.bounds import MOST_WORKERS, is_duration, is_rate, is_session_id, is_step, is_term, is_ticket, is_worker
from shared.checkpoint import MAX_NAMED
from shared.errors import ProtocolError, one_line
from shared.registry.metrics import MOST_METRICS
from shared.training.step_seconds import StepSeconds
from shared.wire.isthmus.v1 import trainer_pb2 as pb

T = TypeVar("T")
M = TypeVar("M", bound=Message)
_SHOWN = 40
"""Largest number of characters of a wrong value that an error shows."""
_MOST_FIGURES = MOST_METRICS + 2
"""Metrics, loss and accuracy."""


class AnswerJudge:
    """The judge of the answers of the trainer at one address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def opened(self, answer: pb.OpenSessionResponse) -> pb.OpenSessionResponse:
        """The id names the session from now on."""
        self._demand("OpenSession", "session_id", answer.session_id, is_session_id, "32 hexadecimal digits")
        return answer

    def joined(self, answer: pb.JoinSessionResponse) -> pb.JoinSessionResponse:
        """Steps, checkpoints and tickets."""
        call = "JoinSession"
        self._demand(call, "next_step", answer.next_step, is_step, "a step that a run can have")
        self._few(call, "checkpoints", answer.checkpoints, MAX_NAMED)
        self._few(call, "replicas", answer.replicas, MAX_NAMED)
        for name in (*answer.checkpoints, *(kept.checkpoint for kept in answer.replicas)):
            self._demand(call, "step of a checkpoint", name.step, is_step, "a step that a run can have")
            self._demand(call, "lineage of a checkpoint", name.lineage, is_term, "a term that a session can have")
        return self.with_tickets(call, answer)

    def seen(self, answer: pb.GetSessionResponse) -> pb.GetSessionResponse:
        """The workers that it waits for."""
        self._few("GetSession", "awaited", answer.awaited, MOST_WORKERS)
        return answer

    def restored(self, answer: pb.RestoreWorkerResponse) -> pb.RestoreWorkerResponse:
        """The step of a group's member, and tickets."""
        self._demand("RestoreWorker", "step", answer.step, is_step, "a step that a run can have")
        return self.with_tickets("RestoreWorker", answer)

    def with_tickets(self, call: str, answer: M) -> M:
        """The field `tickets`, which some answers have."""
        tickets: Sequence[pb.Ticket] = answer.tickets  # type: ignore[attr-defined]
        self._few(call, "tickets", tickets, MOST_WORKERS)
        for one in tickets:
            self._demand(call, "worker of a ticket", one.worker, is_worker, "the name of a worker")
            self.ticket(call, one.ticket)
        return answer

    def ticket(self, call: str, ticket: str) -> str:
        """Judge a ticket, which lets its bearer dial or download and travels on in a header."""
        self._demand(call, "ticket", ticket, is_ticket, "up to 128 letters, digits, - and _")
        return ticket

    def measured_stage(self, answer: pb.MeasureStageResponse, repeats: int) -> list[StepSeconds]:
        """Seconds of each step, as many as were asked for."""
        call = "MeasureStage"
        self._demand(call, "count of steps", len(answer.steps), lambda count: count == repeats, str(repeats))
        for step in answer.steps:
            for seconds in (step.forward, step.backward, step.update):
                self._demand(call, "seconds", seconds, is_duration, _DURATION)
        return [StepSeconds(step.forward, step.backward, step.update) for step in answer.steps]

    def peers_checked(self, answer: pb.CheckPeersResponse, asked: int) -> list[pb.PeerCheck]:
        """One for each address, whose reason a terminal may show."""
        self._demand("CheckPeers", "count of checks", len(answer.checks), lambda count: count == asked, str(asked))
        return [pb.PeerCheck(allowed=check.allowed, reason=one_line(check.reason)) for check in answer.checks]

    def measured_link(self, answer: pb.MeasureLinkResponse) -> pb.MeasureLinkResponse:
        """Both rates and the round trip."""
        call = "MeasureLink"
        self._demand(call, "uplink", answer.uplink, is_rate, _RATE)
        if answer.HasField("downlink"):
            self._demand(call, "downlink", answer.downlink, is_rate, _RATE)
        self._demand(call, "round_trip_seconds", answer.round_trip_seconds, is_duration, _DURATION)
        return answer

    def probed(self, answer: pb.ProbeResponse) -> pb.ProbeResponse:
        """The share of time, which is divided by."""
        self._demand("Probe", "busy", answer.busy, lambda share: 0.0 <= share <= 1.0, "from 0 to 1")
        return answer

    def copy_timed(self, answer: pb.TrainCopyResponse) -> pb.CopyTiming:
        """Judge the durations of training a copy."""
        call, told = "TrainCopy", answer.timing
        for name, seconds in (
            ("seconds_per_step", told.seconds_per_step),
            ("seconds_per_judged_batch", told.seconds_per_judged_batch),
        ):
            self._demand(call, name, seconds, is_duration, _DURATION)
        self._demand(call, "seconds_per_step", told.seconds_per_step, lambda seconds: seconds > 0, "above 0")
        self._demand(call, "steps_per_epoch", told.steps_per_epoch, _is_some, "1 or more steps that a run can have")
        self._demand(call, "judged_batches", told.judged_batches, is_step, "as many as a run can have steps")
        self._few(call, "figures", told.figures, _MOST_FIGURES)
        return told

    def copy_judged(self, answer: pb.TrainCopyResponse) -> pb.CopyJudged:
        """Judge the figures of a copy; their values may be any."""
        self._few("TrainCopy", "figures", list(answer.judged.figures), _MOST_FIGURES)
        return answer.judged

    def _few(self, call: str, field: str, values: Sequence[object], most: int) -> None:
        self._demand(call, f"count of {field}", len(values), lambda count: count <= most, f"{most} or less")

    def _demand(self, call: str, field: str, value: T, is_right: Callable[[T], bool], right: str) -> None:
        if not is_right(value):
            shown = repr(value[:_SHOWN]) if isinstance(value, str) else value
            raise ProtocolError(
                f"the trainer at {self._address} answers {call} with a {field} of {shown}; it must be {right}"
            )


_DURATION = "a number of seconds that work can take"
_RATE = "a number of bits per second that a link can carry"


def _is_some(count: int) -> bool:
    return count > 0 and is_step(count)
