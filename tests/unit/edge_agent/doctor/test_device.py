"""The doctor's judgement of the device, on both sides of every bound."""

import datetime
import sys
from pathlib import Path

import pytest
import torch

from edge_agent.doctor import device
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
    judge_shared_memory,
    processor_flags,
)
from edge_agent.doctor.finding import Status
from tests.support.running import edge_config

OK, ADVICE, FIX, SKIPPED = Status.OK, Status.ADVICE, Status.FIX, Status.SKIPPED
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
MOMENT = datetime.timedelta(seconds=1)


@pytest.mark.parametrize(("version", "status"), [((3, 10, 14), FIX), ((3, 11, 0), OK), ((3, 14, 1), OK)])
def test_python_is_as_new_as_the_package_wants(version, status):
    assert check_python(version).status is status


@pytest.mark.parametrize(
    ("version", "cuda", "has_gpu", "status"),
    [
        ("2.5.1", None, False, FIX),
        ("2.6.0+cpu", None, False, OK),
        ("2.13.0+cu130", "13.0", True, OK),
        ("2.13.0+cpu", None, True, ADVICE),
        ("3.0.0a0+git123", None, False, OK),
    ],
)
def test_torch_is_new_enough_and_built_for_the_gpu_that_is_there(version, cuda, has_gpu, status):
    assert check_torch(version, cuda, has_gpu=has_gpu).status is status


@pytest.mark.parametrize(("free", "status"), [(2**20, FIX), (64 * 2**20, ADVICE), (2**30, OK), (sys.maxsize, SKIPPED)])
def test_processes_that_load_need_shared_memory(free, status):
    found = judge_shared_memory(2, free)
    assert found.status is status
    assert ("--shm-size" in found.remedy) is (status in (FIX, ADVICE))


def test_shared_memory_is_looked_at_where_processes_load():
    checks = {
        workers: {found.check for found in examine_device(edge_config(f"data.workers={workers}"))} for workers in (0, 2)
    }
    assert checks[2] - checks[0] == {"shared memory"}


def test_more_threads_than_cores_are_too_many():
    assert check_compute("cpu", 2, 2).status is OK
    assert check_compute("cpu", 3, 2).status is ADVICE
    assert "3 threads, 2 cores" in check_compute("cpu", 3, 2).result


def test_a_device_that_is_not_there_is_named_with_what_to_do():
    missing = check_compute(f"cuda:{torch.cuda.device_count()}", 1, 2)
    assert missing.status is FIX
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
        (LEAST_MEMORY_BYTES - 1, FIX),
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
        (LEAST_DISK_BYTES - 1, True, FIX),
        (LEAST_DISK_BYTES, True, ADVICE),
        (GOOD_DISK_BYTES - 1, True, ADVICE),
        (GOOD_DISK_BYTES, True, OK),
        (GOOD_DISK_BYTES, False, FIX),
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
    assert check_disk(edge_config(f"checkpoints.location={tmp_path / 'file' / 'x'}")).status is FIX
    assert check_disk(edge_config("checkpoints.location=none")).status is SKIPPED
    assert check_disk(edge_config("checkpoints.location=memory://x")).status is FIX
    monkeypatch.setattr(device.os, "access", lambda *_: False)
    assert check_disk(edge_config(f"checkpoints.location={place}")).status is FIX


@pytest.mark.parametrize(
    ("now", "synchronised", "status"),
    [
        (NOON - MOMENT, True, FIX),
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
