"""The doctor's judgement of a trainer's answers: the token and the version."""

import grpc
import pytest

from edge_agent.doctor.finding import Status
from edge_agent.doctor.trainer import judge_token, judge_version
from shared.client.probing import ProbeAnswer
from shared.version import PROTOCOL_VERSION

OK, ADVICE, FIX, SKIPPED = Status.OK, Status.ADVICE, Status.FIX, Status.SKIPPED
Code = grpc.StatusCode
GOOD = {
    "train": ProbeAnswer(Code.FAILED_PRECONDITION),
    "control": ProbeAnswer(Code.OK),
    "read": ProbeAnswer(Code.NOT_FOUND),
}


def test_a_token_is_judged_by_the_calls_that_it_opens():
    assert judge_token(GOOD).status is OK
    unknown = judge_token({**GOOD, "read": ProbeAnswer(Code.UNAUTHENTICATED, "the token is not known here")})
    assert (unknown.status, unknown.result) == (FIX, "the token is not known here")
    narrow = judge_token(
        {**GOOD, "train": ProbeAnswer(Code.PERMISSION_DENIED), "control": ProbeAnswer(Code.PERMISSION_DENIED)}
    )
    assert (narrow.status, narrow.result) == (FIX, "it lacks the scopes train, control")
    assert (
        judge_token({**GOOD, "read": ProbeAnswer(Code.RESOURCE_EXHAUSTED, "too many calls")}).result == "too many calls"
    )


@pytest.mark.parametrize(
    ("code", "details", "status"),
    [
        (Code.FAILED_PRECONDITION, f"...; this trainer speaks {PROTOCOL_VERSION}", OK),
        (Code.FAILED_PRECONDITION, f"...; this trainer speaks {PROTOCOL_VERSION + 1}", FIX),
        (Code.FAILED_PRECONDITION, "something else", SKIPPED),
        (Code.PERMISSION_DENIED, "OpenSession needs a token with the scope train", SKIPPED),
    ],
)
def test_the_versions_are_compared(code, details, status):
    assert judge_version(ProbeAnswer(code, details)).status is status
