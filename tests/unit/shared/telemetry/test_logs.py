"""Logs: one shape for every library, with the context of each line."""

import asyncio
import contextvars
import io
import json
import logging
import threading
import warnings

import numpy
import pytest
import structlog
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.concurrency.threads import WorkerThread
from shared.telemetry import logs
from shared.telemetry.logs import bind_process_run, bind_run, configure_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def json_lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_both_ways_of_logging_write_the_same_shape():
    stream = io.StringIO()
    configure_logs("info", "auto", stream)
    bind_run("r-1", "s-1")
    structlog.get_logger("ours").info("migrated", cut=3)
    logging.getLogger("theirs").info("port %d", 80, extra={"cut": 3})
    ours, theirs = json_lines(stream)
    assert ours.pop("timestamp").endswith("Z")
    assert theirs.pop("timestamp").endswith("Z")
    theirs.pop("message", None)  # pytest's handlers leave these on the record
    assert ours == {"event": "migrated", "cut": 3, "logger": "ours", "level": "info", "session": "s-1", "run": "r-1"}
    assert theirs == {"event": "port 80", "cut": 3, "logger": "theirs", "level": "info", "session": "s-1", "run": "r-1"}


def test_a_line_below_the_level_is_not_written():
    stream = io.StringIO()
    configure_logs("warning", "json", stream)
    for logger in (structlog.get_logger("ours"), logging.getLogger("theirs")):
        logger.info("quiet")
        logger.warning("loud")
    assert [line["event"] for line in json_lines(stream)] == ["loud", "loud"]


@pytest.mark.parametrize(
    ("format", "stream", "is_json"),
    [
        ("auto", Terminal(), False),
        ("auto", io.StringIO(), True),
        ("text", io.StringIO(), False),
        ("json", Terminal(), True),
    ],
)
def test_auto_is_text_on_a_terminal_and_json_elsewhere(format, stream, is_json: bool):
    configure_logs("info", format, stream)
    structlog.get_logger("ours").info("ready", port=1)
    assert stream.getvalue().startswith("{") == is_json
    assert ("\x1b[" in stream.getvalue()) == (stream.isatty() and not is_json)


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_traceback_is_written_without_local_variables(format):
    stream = io.StringIO()
    configure_logs("info", format, stream)
    batch = "secret" * 2
    try:
        raise ValueError(f"bad {len(batch)}")
    except ValueError:
        structlog.get_logger("ours").exception("failed")
        logging.getLogger("theirs").exception("failed")
    assert stream.getvalue().count("ValueError: bad") == 2
    assert "secretsecret" not in stream.getvalue()
    if format == "json":
        assert len(json_lines(stream)) == 2


def test_configuring_again_replaces_the_stream_also_for_loggers_in_use():
    first, second = io.StringIO(), io.StringIO()
    configure_logs("info", "json", first)
    logger = structlog.get_logger("ours")
    logger.info("one")
    configure_logs("info", "json", second)
    logger.info("two")
    assert [line["event"] for line in json_lines(first)] == ["one"]
    assert [line["event"] for line in json_lines(second)] == ["two"]


def test_a_warning_of_a_library_is_a_line_too():
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("odd", UserWarning, stacklevel=1)
    (line,) = json_lines(stream)
    assert line["logger"] == "py.warnings"
    assert "odd" in line["event"]


def test_a_thread_has_what_its_caller_has_and_one_of_nobodys_what_the_process_has(monkeypatch):
    monkeypatch.setattr(logs, "process_keys", {})
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    say = structlog.get_logger("ours").info

    async def call(run):
        bind_run(run)
        await worker.run(say, "for somebody")

    async def call_all():
        await asyncio.gather(call("r-1"), call("r-2"))

    worker = WorkerThread("torch")
    contextvars.Context().run(asyncio.run, call_all())
    worker.close()
    alone = threading.Thread(target=lambda: say("alone"))
    alone.start()
    alone.join()
    bind_process_run("r-3")
    later = threading.Thread(target=lambda: say("later"))
    later.start()
    later.join()
    assert [line.get("run") for line in json_lines(stream)] == ["r-1", "r-2", None, "r-3"]


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
def test_every_line_is_strict_json_whatever_is_logged(value):
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    structlog.get_logger("ours").info("seen", value=value, nested={"loss": (float("nan"), float("-inf"))})
    (line,) = stream.getvalue().splitlines()
    seen = json.loads(line, parse_constant=refuse)
    assert seen["nested"] == {"loss": ["nan", "-inf"]}


def test_numbers_of_other_libraries_are_strict_json_too():
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    structlog.get_logger("ours").info("seen", numpy=numpy.float64("inf"), torch=torch.tensor(float("nan")))
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line, parse_constant=refuse)["numpy"] == "inf"
