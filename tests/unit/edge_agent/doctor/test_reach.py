"""The doctor's judgement of a handshake and of the trainer's certificate."""

import datetime
import ssl

import pytest

from edge_agent.doctor.finding import Status
from edge_agent.doctor.reach import SOON, judge_certificate, judge_handshake

OK, ADVICE, FIX, SKIPPED = Status.OK, Status.ADVICE, Status.FIX, Status.SKIPPED
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
MOMENT = datetime.timedelta(seconds=1)


def verification(message):
    error = ssl.SSLCertVerificationError(1, message)
    error.verify_message = message
    return error


def alert(reason):
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (verification("unable to get local issuer certificate"), "tls.ca"),
        (verification("Hostname mismatch, certificate is not valid for 'gpu'."), "tls.server_name"),
        (verification("IP address mismatch, certificate is not valid for '10.0.0.1'."), "tls.server_name"),
        (verification("certificate has expired"), "renew"),
        (verification("certificate is not yet valid"), "clock"),
        (alert("WRONG_VERSION_NUMBER"), "[tls]"),
        (alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "tls.certificate"),
        (alert("TLSV1_ALERT_UNKNOWN_CA"), "tls.certificate"),
        (ConnectionResetError(), "tls.certificate"),
        (TimeoutError(), "listen"),
    ],
)
def test_a_handshake_that_failed_says_which_side_mends_it(error, remedy):
    judged = judge_handshake(error)
    assert judged.status is FIX
    assert remedy in judged.remedy


def test_a_certificate_that_ends_soon_is_renewed_now():
    assert judge_certificate(NOON + SOON, NOON).status is OK
    assert judge_certificate(NOON + SOON - MOMENT, NOON).status is ADVICE
