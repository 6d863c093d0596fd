"""Errors in a status: the messages for the trainer's operator and for the edge's user."""

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import (
    AccessError,
    BusyError,
    ConfigError,
    DamagedMessageError,
    ExitCode,
    FailedError,
    FencedError,
    ModelError,
    NotStoredError,
    PlanError,
    ProtocolError,
    RefusedError,
    SessionLostError,
    StoppedError,
    TicketError,
    UnreachableError,
    one_line,
)
from shared.transport.rpc.status import (
    Kind,
    StatusError,
    abort,
    error_of,
    passed_on,
    retry_after_seconds,
    status_of,
)
from shared.transport.stream.packets import Damaged, undamaged

Code = grpc.StatusCode


def at_the_edge(code, details):
    return error_of(AioRpcError(code, Metadata(), Metadata(), details=details), "gpu:1")


@given(
    st.text() | st.text(alphabet=st.characters()) | st.binary().map(lambda raw: raw.decode(errors="surrogateescape"))
)
def test_any_message_fits_a_status_and_one_line_of_a_terminal(text):
    said = one_line(text * 50)
    assert said.isprintable()
    assert len(said.encode()) <= 2000
    assert said[:1] != " "


@given(st.text(alphabet="abcäé 漢", max_size=300))
def test_an_ordinary_sentence_stays_as_it_is(text):
    assert one_line(text) == " ".join(text.split())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StatusError(Code.NOT_FOUND, "x"), Code.NOT_FOUND),
        (DamagedMessageError("x"), Code.DATA_LOSS),
        (ConfigError("x"), Code.INVALID_ARGUMENT),
        (ModelError("x"), Code.INVALID_ARGUMENT),
        (ProtocolError("x"), Code.INVALID_ARGUMENT),
    ],
)
def test_an_error_of_the_trainer_has_its_status(error, code):
    assert status_of(error) is code


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (Code.UNAVAILABLE, ExitCode.UNREACHABLE),
        (Code.DEADLINE_EXCEEDED, ExitCode.UNREACHABLE),
        (Code.CANCELLED, ExitCode.UNREACHABLE),
        (Code.UNIMPLEMENTED, ExitCode.PROTOCOL),
        (Code.FAILED_PRECONDITION, ExitCode.PROTOCOL),
        (Code.DATA_LOSS, ExitCode.FAILED),
        (Code.INTERNAL, ExitCode.FAILED),
        (Code.UNKNOWN, ExitCode.FAILED),
        (Code.INVALID_ARGUMENT, ExitCode.REFUSED),
        (Code.UNAUTHENTICATED, ExitCode.ACCESS),
        (Code.PERMISSION_DENIED, ExitCode.REFUSED),
        (Code.RESOURCE_EXHAUSTED, ExitCode.REFUSED),
        (Code.NOT_FOUND, ExitCode.REFUSED),
    ],
)
def test_a_status_ends_the_agent_with_its_exit_code_and_a_sentence_that_names_the_trainer(code, exit_code):
    error = at_the_edge(code, "because of\nthis")
    assert error.exit_code == exit_code
    assert "gpu:1" in str(error)
    assert str(error).endswith(": because of this")


class Aborted:
    """The end of a call, as the other side would see it."""

    async def abort(self, code, details, trailing_metadata=()):
        metadata = Metadata(*trailing_metadata)
        raise AioRpcError(code, Metadata(), metadata, details=details)


@given(seconds=st.floats(0, 1e6))
async def test_when_to_try_again_is_told_and_is_never_more_than_an_hour(seconds):
    with pytest.raises(AioRpcError) as ended:
        await abort(Aborted(), StatusError(Code.RESOURCE_EXHAUSTED, "no room", seconds))
    error = error_of(ended.value, "gpu:1")
    assert isinstance(error, BusyError)
    assert error.exit_code is ExitCode.BUSY
    assert error.retry_after_seconds == pytest.approx(min(seconds, 3600), abs=1e-6)


@given(seconds=st.floats(0, 1e6))
async def test_a_trainer_that_cannot_serve_now_may_say_when_it_can(seconds):
    with pytest.raises(AioRpcError) as ended:
        await abort(Aborted(), StatusError(Code.UNAVAILABLE, "the disk is full", seconds))
    error = error_of(ended.value, "gpu:1")
    assert isinstance(error, UnreachableError)
    assert error.retry_after_seconds == pytest.approx(min(seconds, 3600), abs=1e-6)


async def test_a_refusal_that_waiting_does_not_mend_tells_no_time():
    with pytest.raises(AioRpcError) as ended:
        await abort(Aborted(), StatusError(Code.RESOURCE_EXHAUSTED, "too large"))
    assert retry_after_seconds(ended.value) is None
    assert error_of(ended.value, "gpu:1").exit_code is ExitCode.REFUSED


@given(junk=st.binary() | st.text())
def test_invalid_details_are_ignored(junk):
    metadata = Metadata(("grpc-status-details-bin", junk), ("other", "x"))
    told = retry_after_seconds(AioRpcError(Code.RESOURCE_EXHAUSTED, Metadata(), metadata, details="x"))
    assert told is None or 0 <= told <= 3600


def test_a_write_over_a_connection_that_was_just_lost_is_no_failure_of_the_trainer():
    assert at_the_edge(Code.INTERNAL, "Internal error from Core").exit_code == ExitCode.UNREACHABLE


def test_a_trainer_that_gives_no_reason_is_quoted_so():
    assert str(at_the_edge(Code.INVALID_ARGUMENT, "")).endswith(": no reason given")


def test_a_damaged_detail_is_not_used():
    assert undamaged("as it was") == "as it was"
    with pytest.raises(DamagedMessageError, match="damaged message: its checksum is wrong"):
        undamaged(Damaged("its checksum is wrong"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PlanError("x"), Code.INVALID_ARGUMENT),
        (UnreachableError("x"), Code.UNAVAILABLE),
        (RefusedError("x"), Code.FAILED_PRECONDITION),
        (StoppedError("x"), Code.ABORTED),
    ],
)
def test_an_error_of_the_agents_has_its_status(error, code):
    assert status_of(error) is code


@pytest.mark.parametrize(
    ("kind", "at_the_agent"),
    [
        (SessionLostError, SessionLostError),
        (TicketError, SessionLostError),  # Joining again gives another ticket.
        (NotStoredError, NotStoredError),
        (FencedError, FencedError),
        (RefusedError, RefusedError),
        (ModelError, RefusedError),
        (AccessError, AccessError),
        (BusyError, BusyError),
        (UnreachableError, UnreachableError),
        (FailedError, FailedError),
        (DamagedMessageError, FailedError),
        (ProtocolError, ProtocolError),
    ],
)
@pytest.mark.parametrize("workers_between", [1, 2, 3])
async def test_a_failure_keeps_its_kind_and_its_words_through_any_number_of_workers(
    kind, at_the_agent, workers_between
):
    failure = kind("it is so")
    for number in range(workers_between):
        with pytest.raises(AioRpcError) as ended:
            await abort(Aborted(), passed_on(failure, f"the link to worker {number} cannot go on: {failure}"))
        failure = error_of(ended.value, f"gpu:{number}")
        assert type(failure) is at_the_agent
    assert all(f"the link to worker {number} cannot go on" in str(failure) for number in range(workers_between))
    assert str(failure).endswith("it is so")


async def test_an_unknown_kind_is_read_from_its_status():
    with pytest.raises(AioRpcError) as ended:
        await abort(Aborted(), StatusError(Code.FAILED_PRECONDITION, "it is so", kind="A_LATER_ONE"))
    assert type(error_of(ended.value, "gpu:1")) is ProtocolError


@pytest.mark.parametrize(
    ("term", "is_told"), [(0, True), (2**48, True), (2**48 + 1, False), (-1, False), (10**30, False), ("x", False)]
)
async def test_the_last_term_of_a_session_is_told_where_there_can_be_such_a_term(term, is_told):
    with pytest.raises(AioRpcError) as ended:
        await abort(Aborted(), StatusError(Code.ABORTED, "it is so", kind=Kind.OUTDATED_TERM, term=term))
    error = error_of(ended.value, "gpu:1")
    assert isinstance(error, FencedError)
    assert getattr(error, "term", None) == (term if is_told else None)
