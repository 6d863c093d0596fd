"""Lines that libraries write to standard error: they become events of a strict log, in order and limited in number."""

import io
import json
import subprocess
import sys

import pytest

from shared.telemetry.logs import configure_logs
from shared.telemetry.raw_lines import RawLines
from tests.support.running import ROOT

BEGIN = """
import gc, os, subprocess, sys, threading, warnings
from shared.commands.process_log import process_log
from shared.config import LogConfig
import structlog
"""
GRPC = "E1123 18:46:00.507132   10594 ssl_transport_security.cc:2563] Handshake failed"


def entries(body, code=0):
    """Run this body in a process whose log is JSON, and return the log. Each line must be an object of strict JSON."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    program = f"{BEGIN}\nwith process_log(LogConfig(format='json')):\n{lines}\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return [json.loads(line, parse_constant=pytest.fail) for line in done.stderr.splitlines()]


def test_a_line_of_c_code_is_an_event():
    (said,) = entries(f"os.write(2, b'''{GRPC}\\n''')")
    assert (said["event"], said["level"], said["source"]) == (
        "Handshake failed",
        "error",
        "ssl_transport_security.cc:2563",
    )


def test_a_line_of_a_child_process_is_an_event():
    (said,) = entries("subprocess.run([sys.executable, '-c', 'import os; os.write(2, bytes([255, 10]))'])")
    assert said["event"] == "\\xff"


def test_a_warning_a_thread_that_fails_and_a_finalizer_that_fails_are_an_event_each():
    said = entries("""
warnings.warn("odd", UserWarning)
thread = threading.Thread(target=lambda: 1 / 0, name="torch")
thread.start(); thread.join()
class Left:
    def __del__(self): raise ValueError("left")
Left()
gc.collect()
""")
    warned, failed, left = said
    assert "odd" in warned["event"]
    assert (failed["thread"], "ZeroDivisionError" in failed["exception"]) == ("torch", True)
    assert "ValueError: left" in left["exception"]


def test_nothing_that_was_written_before_the_end_is_lost():
    said = entries("for n in range(50): os.write(2, f'E1123 18:46:00.5  1 a.cc:{n}] x\\n'.encode())")
    assert [each["source"] for each in said] == [f"a.cc:{n}" for n in range(50)]


def test_a_full_pipe_stops_nobody():
    said = entries("""
for _ in range(4000):
    try: os.write(2, b"x" * 4095 + b"\\n")
    except BlockingIOError: pass
structlog.get_logger().info("the end")
""")
    assert said[-1]["event"] == "the end" or any(each["event"] == "the end" for each in said)


def test_after_the_block_standard_error_is_as_it_was():
    program = f"{BEGIN}\nwith process_log(LogConfig(format='json')): pass\nos.write(2, b'plain')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "plain"


@pytest.fixture
def log():
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_strangers_cannot_fill_the_log(log):
    now = [0.0]
    lines = RawLines(sys.stderr, lambda: now[0])
    for _ in range(1000):
        lines.take(GRPC)
    assert len(log()) == 100
    now[0] = 10.0
    for _ in range(1000):
        lines.take(GRPC)
    assert len(log()) == 110
    assert log()[100]["left_out_before"] == 900


def test_entries_that_came_together_are_told_apart_and_what_belongs_together_is_not(log):
    heard = []
    lines = RawLines(sys.stderr)

    def hear(entry):
        heard.append(entry)
        return True

    lines.hear = hear
    lines.take(f"{GRPC}\n=== Source Location Trace: ===\nstatus.cc:1\n shutdown=false\n{GRPC}\n")
    assert [len(entry.splitlines()) for entry in heard] == [4, 1]
    assert log() == []
