"""What the doctor makes of what it sees, on both sides of every bound."""

import datetime
import io
import json
import ssl
import sys
from pathlib import Path

import grpc
import pytest
import torch
from rich.console import Console

from edge_agent.adaptation import link_measurement as link_measuring
from edge_agent.adaptation.link_measurement import SIZES_BYTES, bits_per_second
from edge_agent.doctor import device, link
from edge_agent.doctor.command import check_fitness, render_table
from edge_agent.doctor.device import (
    GOOD_DISK_BYTES,
    GOOD_MEMORY_BYTES,
    LEAST_DISK_BYTES,
    LEAST_MEMORY_BYTES,
    check_clock,
    check_compute,
    check_disk,
    check_memory,
    check_processor,
    check_python,
    check_torch,
    clock_is_synchronised,
    examine_device,
    judge_disk,
    processor_flags,
)
from edge_agent.doctor.examine import WAY_TO_THE_TRAINER, check_credentials
from edge_agent.doctor.finding import Finding, Status, fine, mend
from edge_agent.doctor.link import (
    LONG_ROUND_TRIP_SECONDS,
    NARROW_BITS_PER_SECOND,
    judge_rate,
    judge_round_trip,
)
from edge_agent.doctor.reach import SOON, judge_certificate, judge_handshake
from edge_agent.doctor.trainer import judge_token, judge_version
from shared.client.call import Answer
from shared.errors import ExitCode, UnfitError
from shared.transport.auth.certificates import Identity, issue, make_authority
from shared.version import PROTOCOL_VERSION
from tests.conftest import ROOT
from tests.support.running import edge_config

OK, ADVICE, MEND, SKIPPED = Status.OK, Status.ADVICE, Status.MEND, Status.SKIPPED
Code = grpc.StatusCode
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
MOMENT = datetime.timedelta(seconds=1)


@pytest.mark.parametrize(("version", "status"), [((3, 10, 14), MEND), ((3, 11, 0), OK), ((3, 14, 1), OK)])
def test_python_is_as_new_as_the_package_wants(version, status):
    assert check_python(version).status is status


@pytest.mark.parametrize(
    ("version", "cuda", "has_gpu", "status"),
    [
        ("2.5.1", None, False, MEND),
        ("2.6.0+cpu", None, False, OK),
        ("2.13.0+cu130", "13.0", True, OK),
        ("2.13.0+cpu", None, True, ADVICE),
        ("3.0.0a0+git123", None, False, OK),
    ],
)
def test_torch_is_new_enough_and_built_for_the_gpu_that_is_there(version, cuda, has_gpu, status):
    assert check_torch(version, cuda, has_gpu=has_gpu).status is status


def test_more_threads_than_cores_are_too_many():
    assert check_compute("cpu", 2, 2).status is OK
    assert check_compute("cpu", 3, 2).status is ADVICE
    assert "3 threads, 2 cores" in check_compute("cpu", 3, 2).result


def test_a_device_that_is_not_there_must_be_mended():
    missing = check_compute(f"cuda:{torch.cuda.device_count()}", 1, 2)
    assert missing.status is MEND
    assert "compute.device" in missing.remedy


@pytest.mark.parametrize(
    ("machine", "flags", "encrypts", "status"),
    [
        ("x86_64", {"avx2", "aes"}, True, OK),
        ("x86_64", {"sse4_2", "aes"}, False, ADVICE),
        ("aarch64", {"asimd", "aes"}, True, OK),
        ("aarch64", {"asimd"}, True, ADVICE),
        ("aarch64", {"asimd"}, False, OK),
        ("riscv64", set(), True, OK),
    ],
)
def test_a_processor_is_judged_by_what_torch_and_tls_need(machine, flags, encrypts, status):
    assert check_processor(machine, frozenset(flags), encrypts=encrypts).status is status


def test_the_flags_are_those_of_the_first_core_by_either_name(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nflags\t\t: fpu avx2\n\nprocessor : 1\nflags\t\t: fpu\n")
    assert processor_flags(path) == {"fpu", "avx2"}
    path.write_text("processor : 0\nFeatures\t: fp asimd\n")
    assert processor_flags(path) == {"fp", "asimd"}
    path.write_text("hart : 0\n")
    assert processor_flags(path) == processor_flags(tmp_path / "none") == frozenset()


@pytest.mark.parametrize(
    ("available", "status"),
    [
        (LEAST_MEMORY_BYTES - 1, MEND),
        (LEAST_MEMORY_BYTES, ADVICE),
        (GOOD_MEMORY_BYTES - 1, ADVICE),
        (GOOD_MEMORY_BYTES, OK),
        (sys.maxsize, SKIPPED),
    ],
)
def test_memory_has_two_bounds(available, status):
    assert check_memory(available).status is status


@pytest.mark.parametrize(
    ("free", "writable", "status"),
    [
        (LEAST_DISK_BYTES - 1, True, MEND),
        (LEAST_DISK_BYTES, True, ADVICE),
        (GOOD_DISK_BYTES - 1, True, ADVICE),
        (GOOD_DISK_BYTES, True, OK),
        (GOOD_DISK_BYTES, False, MEND),
    ],
)
def test_the_disk_has_two_bounds_and_must_be_writable(free, writable, status):
    assert judge_disk(Path("/state"), free, writable=writable).status is status


def test_the_disk_that_is_looked_at_is_that_of_the_checkpoints(tmp_path, monkeypatch):
    place = tmp_path / "not" / "yet" / "there"
    found = check_disk(edge_config(f"checkpoints.location={place}"))
    assert found.status in (OK, ADVICE)
    assert str(place) in found.result
    assert not (tmp_path / "not").exists(), "nothing is made"
    (tmp_path / "file").write_text("")
    assert check_disk(edge_config(f"checkpoints.location={tmp_path / 'file' / 'x'}")).status is MEND
    assert check_disk(edge_config("checkpoints.location=none")).status is SKIPPED
    assert check_disk(edge_config("checkpoints.location=memory://x")).status is MEND
    monkeypatch.setattr(device.os, "access", lambda *_: False)
    assert check_disk(edge_config(f"checkpoints.location={place}")).status is MEND


@pytest.mark.parametrize(
    ("now", "synchronised", "status"),
    [
        (NOON - MOMENT, True, MEND),
        (NOON, True, OK),
        (NOON, None, OK),
        (NOON, False, ADVICE),
    ],
)
def test_a_clock_is_not_before_our_own_files_and_is_set_by_somebody(now, synchronised, status):
    assert check_clock(now, NOON, synchronised).status is status


def test_the_kernel_tells_whether_its_clock_is_synchronised():
    assert clock_is_synchronised() in (True, False) if sys.platform == "linux" else clock_is_synchronised() is None


def test_every_check_of_the_device_says_one_thing():
    findings = examine_device(edge_config())
    assert len({finding.check for finding in findings}) == len(findings)
    assert all(finding.result for finding in findings)


def test_the_agents_own_certificate_is_good_for_a_while(tmp_path):
    authority = make_authority("ours", 100)
    authority.write(tmp_path / "ca.pem", tmp_path / "ca.key")

    def judged(days, moment):
        issue(authority, Identity("edge"), days).write(tmp_path / "edge.pem", tmp_path / "edge.key")
        files = {"ca": "ca.pem", "certificate": "edge.pem", "key": "edge.key"}
        config = edge_config(*(f"tls.{key}={tmp_path / name}" for key, name in files.items()))
        return check_credentials(config, moment)[0].status

    now = datetime.datetime.now(datetime.UTC)
    assert judged(SOON.days + 1, now) is OK
    assert judged(SOON.days - 1, now) is ADVICE
    assert judged(0, now) is MEND


def test_credentials_that_cannot_be_used_must_be_mended(tmp_path):
    token = tmp_path / "token"
    token.write_text("abc\n")
    token.chmod(0o644)
    open_to_all, access = check_credentials(edge_config(f"trainer.token_file={token}"), NOON)
    assert (open_to_all.status, access) == (MEND, None)
    assert "chmod 600" in open_to_all.result
    token.chmod(0o600)
    assert check_credentials(edge_config(f"trainer.token_file={token}"), NOON)[0].status is OK
    elsewhere = edge_config(f"trainer.token_file={token}", "trainer.address=gpu.example.org:1")
    assert "clear text" in check_credentials(elsewhere, NOON)[0].result
    assert check_credentials(edge_config(), NOON)[0] == fine("credentials", "none are set")


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
    assert judged.status is MEND
    assert remedy in judged.remedy


def test_a_certificate_that_ends_soon_is_renewed_now():
    assert judge_certificate(NOON + SOON, NOON).status is OK
    assert judge_certificate(NOON + SOON - MOMENT, NOON).status is ADVICE


GOOD = {"train": Answer(Code.FAILED_PRECONDITION), "control": Answer(Code.OK), "read": Answer(Code.NOT_FOUND)}


def test_a_token_is_judged_by_the_calls_that_it_opens():
    assert judge_token(GOOD).status is OK
    unknown = judge_token({**GOOD, "read": Answer(Code.UNAUTHENTICATED, "the token is none of this trainer's")})
    assert (unknown.status, unknown.result) == (MEND, "the token is none of this trainer's")
    narrow = judge_token({**GOOD, "train": Answer(Code.PERMISSION_DENIED), "control": Answer(Code.PERMISSION_DENIED)})
    assert (narrow.status, narrow.result) == (MEND, "it lacks the scopes train, control")
    assert judge_token({**GOOD, "read": Answer(Code.RESOURCE_EXHAUSTED, "too many calls")}).result == "too many calls"


@pytest.mark.parametrize(
    ("code", "details", "status"),
    [
        (Code.FAILED_PRECONDITION, f"...; this trainer speaks {PROTOCOL_VERSION}", OK),
        (Code.FAILED_PRECONDITION, f"...; this trainer speaks {PROTOCOL_VERSION + 1}", MEND),
        (Code.FAILED_PRECONDITION, "something else", SKIPPED),
        (Code.PERMISSION_DENIED, "OpenSession needs a token with the scope train", SKIPPED),
    ],
)
def test_the_versions_are_compared(code, details, status):
    assert judge_version(Answer(code, details)).status is status


def test_a_round_trip_is_long_from_its_bound_on():
    assert judge_round_trip(LONG_ROUND_TRIP_SECONDS * 0.99).status is OK
    assert judge_round_trip(LONG_ROUND_TRIP_SECONDS).status is ADVICE


@pytest.mark.parametrize(
    ("direction", "key"), [("uplink", "deployment.codec"), ("downlink", "deployment.downlink_codec")]
)
def test_a_link_is_narrow_below_its_bound(direction, key):
    assert judge_rate(direction, NARROW_BITS_PER_SECOND).status is OK
    narrow = judge_rate(direction, NARROW_BITS_PER_SECOND * 0.99)
    assert narrow.status is ADVICE
    assert f'{key} = "' in narrow.remedy


def test_a_rate_is_shown_in_three_digits_and_not_beyond_what_can_be_told():
    assert judge_rate("uplink", 94.36e6).result == "at least 94.4 Mbit/s"
    assert judge_rate("uplink", 999e6).result == "at least 999 Mbit/s"
    assert judge_rate("uplink", 1e9).result == "1 Gbit/s or more"


def test_a_rate_leaves_the_round_trip_out_but_never_more_than_half_of_the_time():
    assert bits_per_second(1_000_000, 1.1, 0.1) == pytest.approx(8e6)
    assert bits_per_second(1_000_000, 0.1, 0.1) == pytest.approx(160e6)


class OneAnswer:
    """A trainer that answers every question alike, after a while by a clock of its own."""

    def __init__(self, answer, seconds_per_byte, clock):
        self._answer, self._seconds_per_byte, self._clock = answer, seconds_per_byte, clock
        self.asked_bytes = []

    async def ask(self, _method, request):
        self.asked_bytes.append(request.ByteSize())
        self._clock.now += request.ByteSize() * self._seconds_per_byte
        return self._answer


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(link_measuring, "time", made)
    return made


async def test_the_uplink_is_measured_with_ever_more_until_it_takes_a_while(clock):
    slow = OneAnswer(Answer(Code.NOT_FOUND), 8 / 1e6, clock)
    assert (await link.check_uplink(slow, 0.0)).result == "at least 1 Mbit/s"
    assert len(slow.asked_bytes) == 2, "64 KiB took more than half a second"
    fast = OneAnswer(Answer(Code.NOT_FOUND), 8 / 100e6, clock)
    assert (await link.check_uplink(fast, 0.0)).result == "at least 100 Mbit/s"
    assert len(fast.asked_bytes) == len(SIZES_BYTES)
    assert sum(fast.asked_bytes) < 6e6


async def test_an_uplink_that_cannot_be_measured_is_no_fault_of_the_device(clock):
    refused = await link.check_uplink(OneAnswer(Answer(Code.RESOURCE_EXHAUSTED, "too many calls"), 0.0, clock), 0.0)
    assert (refused.status, refused.result) == (SKIPPED, "not measured: too many calls")
    late = await link.check_uplink(OneAnswer(Answer(Code.DEADLINE_EXCEEDED), 10 / 65536, clock), 0.0)
    assert (late.status, late.result) == (ADVICE, "less than 0.0524 Mbit/s")


FINDINGS = [
    fine("python", "3.11.7"),
    Finding("memory", ADVICE, "400.0 MB free", "end other programs"),
    mend("name", "[red]gpu[/]: no such name", "correct trainer.address"),
]


def test_only_what_must_be_mended_ends_with_a_code():
    check_fitness(FINDINGS[:2])
    with pytest.raises(UnfitError, match="to be mended before this device can train: name") as ended:
        check_fitness(FINDINGS)
    assert ended.value.exit_code is ExitCode.UNFIT


def test_the_table_shows_what_a_peer_says_as_it_is():
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_table(FINDINGS))
    text = console.export_text()
    assert "[red]gpu[/]: no such name" in text
    assert "advice" in text


def test_every_check_and_status_is_documented():
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    checks = [finding.check for finding in examine_device(edge_config())]
    rows = [
        cell.strip() for line in page.splitlines() if line.startswith("| ") for cell in line.split("|")[1].split(",")
    ]
    assert {*checks, *WAY_TO_THE_TRAINER} <= set(rows)
    assert {f"`{status}`" for status in Status} <= set(rows)


def test_json_has_the_fields_that_are_documented(capsys, monkeypatch):
    from edge_agent.doctor import command, examine

    async def found(_config):
        return FINDINGS

    monkeypatch.setattr(examine, "examine", found)
    with pytest.raises(UnfitError):
        command.doctor(None, ["compute.device=cpu"], as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed[1] == {
        "check": "memory",
        "status": "advice",
        "result": "400.0 MB free",
        "remedy": "end other programs",
    }
