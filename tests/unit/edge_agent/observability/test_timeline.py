"""The time line: it can be read back, links carry one tensor at a time, and its figures match the schedule."""

import json
import sys
from itertools import pairwise

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from edge_agent.commands.timeline import timeline
from edge_agent.commands.timeline_plot import draw
from edge_agent.observability.lanes import lanes_of
from edge_agent.observability.timeline import MOST_ENTRIES, RecordedTimeline, Span, Timeline, load
from edge_agent.observability.timeline_window import choose_window, in_turn, summary
from shared.errors import ConfigError
from shared.placement import AGENT, Link, two_workers
from shared.telemetry.phases import PHASES

MICROSECOND = 1e-6
LANES = {lane.phase: lane for lane in lanes_of(two_workers(AGENT, "gpu", 2, 4, 8), [Link(AGENT, "gpu")])}
"""Lanes of two workers."""
TITLES = ["P1 edge compute", "encode", "P2 uplink", "P3 cloud compute", "P4 downlink"]


@st.composite
def any_spans(draw) -> list[Span]:
    """Spans of any phases and steps, in any order."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        start, seconds = draw(st.floats(0, 100)), draw(st.floats(0, 10))
        what, step = draw(st.sampled_from(["forward", "forward, backward"])), draw(st.integers(0, 9))
        found.append(Span(draw(st.sampled_from(sorted(LANES.values()))), what, step, start, start + seconds))
    return found


def pipeline(seconds: dict[str, float], limit: int, steps: int, epoch_steps: int = 0, begin: float = 5.0) -> list[Span]:
    """Return the spans of a pipeline with staleness `limit` when each phase takes these seconds. It is drained after
    each epoch."""
    free = dict.fromkeys(PHASES, begin)
    settled: list[float] = []
    found = []

    def work(phase: str, what: str, step: int, ready: float, share: float = 1.0) -> float:
        start = max(ready, free[phase])
        free[phase] = start + seconds[phase] * share
        found.append(Span(LANES[phase], what, step, start, free[phase]))
        return free[phase]

    for step in range(steps):
        wait_for = step - 1 if epoch_steps and step % epoch_steps == 0 else step - limit - 1
        at = work("edge", "forward", step, settled[wait_for] if wait_for >= 0 else begin, 0.5)
        for phase in ("uplink", "cloud", "downlink"):
            at = work(phase, "tensor", step, at)
        settled.append(at + seconds["edge"] / 2)
        found.append(Span(LANES["edge"], "backward, update", step, at, settled[-1]))
    return found


def window_of(spans, *arguments, **named):
    """Return the window of a time line of two workers."""
    return choose_window(RecordedTimeline(tuple(LANES.values()), tuple(spans)), *arguments, **named)


def write(spans, path):
    timeline = Timeline()
    timeline.show(LANES.values())
    for span in spans:
        timeline.add(span.lane, span.what, span.step, span.start, span.end)
    timeline.write(path)
    return path


@pytest.mark.full
def test_a_long_run_keeps_its_newest_spans(tmp_path):
    timeline = Timeline()
    timeline.show(LANES.values())
    for step in range(MOST_ENTRIES + 1000):
        timeline.add(LANES["edge"], "forward", step, float(step), step + 0.5)
    timeline.write(tmp_path / "out.json")
    found = load(tmp_path / "out.json").spans
    assert (len(found), found[0].step, found[-1].step) == (MOST_ENTRIES, 1000, MOST_ENTRIES + 999)


@given(spans=any_spans())
def test_a_written_time_line_is_read_back(spans, tmp_path_factory):
    trace = load(write(spans, tmp_path_factory.mktemp("trace") / "new" / "out.json"))
    found = trace.spans
    assert trace.lanes == tuple(LANES.values())
    begin = min(span.start for span in spans)
    assert len(found) == len(spans)
    for before, after in zip(spans, found, strict=True):
        assert (after.lane, after.what, after.step) == (before.lane, before.what, before.step)
        assert after.start == pytest.approx(before.start - begin, abs=MICROSECOND)
        assert after.end == pytest.approx(before.end - begin, abs=MICROSECOND)


def test_perfetto_reads_a_trace(tmp_path):
    written = json.loads(
        write([Span(LANES["cloud"], "forward, backward", 7, 3.0, 3.5)], tmp_path / "out.json").read_text()
    )
    *names, event = written["traceEvents"]
    assert {name["args"]["name"]: name["tid"] for name in names} == {title: n for n, title in enumerate(TITLES)}
    assert all(name["ph"] == "M" and name["name"] == "thread_name" and name["pid"] == 1 for name in names)
    assert event == {
        "ph": "X",
        "name": "forward, backward 7",
        "cat": "cloud",
        "pid": 1,
        "tid": 3,
        "ts": 0.0,
        "dur": 500_000.0,
        "args": {"step": 7},
    }


def test_an_end_that_two_clocks_put_before_the_start_is_taken_for_the_start(tmp_path):
    (found,) = load(write([Span(LANES["uplink"], "feature", 0, 2.0, 1.9)], tmp_path / "out.json")).spans
    assert (found.start, found.end) == (0.0, 0.0)


EVENT = {"ph": "X", "cat": "edge", "name": "forward 1", "ts": 1.0, "dur": 1.0, "args": {"step": 1}}
FOREIGN = [
    "",
    "[]",
    "{}",
    "[" * 100_000,
    '{"traceEvents": 5}',
    '{"traceEvents": [5]}',
    *(
        json.dumps({"traceEvents": [{**EVENT, **wrong}]})
        for wrong in (
            {"cat": "v8"},
            {"ts": "now"},
            {"dur": None},
            {"args": {}},
            {"args": {"step": "1"}},
            {"args": None},
            {"ts": 10**400},
            {"name": 5},
        )
    ),
]


@pytest.mark.parametrize("text", FOREIGN, ids=range(len(FOREIGN)))
def test_another_file_is_no_time_line(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"other.json is no time line; it must be .* `edge-agent run --trace FILE`"):
        load(path)


def test_a_missing_file_and_one_without_steps_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="is empty"):
        load(write([], tmp_path / "empty.json"))


@given(any_spans())
def test_a_link_carries_one_tensor_after_the_other_and_is_busy_as_before(spans):
    found = in_turn(spans)
    for phase, lane in LANES.items():
        before = [span for span in spans if span.lane == lane]
        after = [span for span in found if span.lane == lane]
        assert len(before) == len(after)
        assert covered(before) == pytest.approx(covered(after))
        if phase in ("uplink", "downlink"):
            assert covered(after) == pytest.approx(sum(span.end - span.start for span in after))
        else:
            assert sorted(before, key=str) == sorted(after, key=str)


def covered(spans) -> float:
    """Count the seconds in which at least one span is active."""
    edges = sorted({moment for span in spans for moment in (span.start, span.end)})
    middles = [((one + other) / 2, other - one) for one, other in pairwise(edges)]
    return sum(length for middle, length in middles if any(span.start <= middle <= span.end for span in spans))


SECONDS = st.fixed_dictionaries({phase: st.floats(0.01, 1.0) for phase in PHASES})


@given(SECONDS, st.integers(20, 40), st.integers(1, 12))
def test_without_staleness_one_module_works_at_a_time(seconds, count, steps):
    window = window_of(pipeline(seconds, 0, count), steps)
    assert window.overlap == pytest.approx(1.0)
    assert window.steps_per_second == pytest.approx(1 / sum(seconds.values()))
    for phase in PHASES:
        assert window.busy(LANES[phase]) == pytest.approx(seconds[phase] / sum(seconds.values()))


@given(SECONDS, st.integers(3, 6))
def test_with_enough_staleness_the_slowest_module_never_rests(seconds, limit):
    seconds["edge"] = 0.01  # This small simulation lets a backward pass overlap with the next forward pass.
    window = window_of(pipeline(seconds, limit, 90), 12, first_step=60)
    slowest = max(seconds, key=seconds.get)
    assert window.steps_per_second == pytest.approx(1 / seconds[slowest])
    assert window.busy(LANES[slowest]) == pytest.approx(1.0)
    assert sum(seconds.values()) / seconds[slowest] <= window.overlap * 1.001 <= 4.005, (
        "what has queued is worked off too"
    )


@example([Span(LANES["edge"], "forward", 1, 0.0, 0.0)], 1).via("a window without length")
@example([Span(LANES["edge"], "forward", step, at, at) for step, at in ((2, 0.25), (1, 0.5))], 1).via(
    "steps out of turn"
)
@given(any_spans(), st.integers(1, 15))
def test_shares_are_shares(spans, steps):
    window = window_of([*spans, Span(LANES["edge"], "forward", 0, 0.0, 1.0)], steps)
    assert all(window.start <= span.start <= span.end <= window.end for span in window.spans)
    assert all(0 <= window.busy(LANES[phase]) <= 1 + 1e-9 for phase in PHASES)
    assert 1 <= window.steps <= steps


def test_a_step_begins_with_its_first_forward_also_where_the_edge_does_all_of_it():
    alone = [Span(LANES["edge"], "forward, loss, backward, update", step, float(step), step + 1.0) for step in range(9)]
    assert window_of(alone, 4, 2).busy(LANES["edge"]) == pytest.approx(1.0)
    middle = [Span(LANES["edge"], "forward, loss, backward", step, step + 0.6, step + 0.8) for step in range(9)]
    heads = [Span(LANES["edge"], "forward", step, float(step), step + 0.2) for step in range(9)]
    window = window_of([*heads, *middle], 4, 2)
    assert (window.start, window.end) == (2.0, 6.0)


EQUAL = dict.fromkeys(PHASES, 1.0)


@pytest.mark.parametrize(
    ("count", "wanted", "given_first", "first", "shown"),
    [
        (30, 12, 5, 5, 12),
        (30, 12, 25, 25, 5),
        (30, 12, 29, 29, 1),
        (5, 12, None, 0, 5),
        (12, 12, None, 0, 12),
        (1, 1, None, 0, 1),
    ],
)
def test_the_window_is_where_it_was_asked_for_and_no_longer_than_the_run(count, wanted, given_first, first, shown):
    window = window_of(pipeline(EQUAL, 2, count), wanted, given_first)
    assert (window.first_step, window.steps) == (first, shown)


@pytest.mark.parametrize("epoch_steps", [25, 31])
def test_the_typical_stretch_is_not_one_with_a_pause(epoch_steps):
    spans = pipeline(EQUAL, 3, 100, epoch_steps)
    window = window_of(spans, 12)
    first, last = window.first_step, window.first_step + window.steps
    assert not any(pause in range(first, last + 1) for pause in range(0, 100, epoch_steps))
    assert window.overlap > window_of(spans, 12, first_step=epoch_steps - 6).overlap


@pytest.mark.parametrize("step", [-1, 30])
def test_a_step_that_is_not_there_is_refused(step):
    with pytest.raises(ConfigError, match=f"--from is {step}; the time line has the steps 0 to 29"):
        window_of(pipeline(EQUAL, 2, 30), 12, step)


def test_where_the_edge_computes_nothing_a_step_begins_with_whatever_is_first_of_it():
    spans = [
        span
        for step in range(6)
        for span in (
            Span(LANES["uplink"], "feature", step, step * 1.0, step + 0.2),
            Span(LANES["cloud"], "forward, backward", step, step + 0.2, step + 0.7),
        )
    ]
    window = window_of(spans, 3, first_step=2)
    assert (window.start, window.end) == (2.0, 5.0)
    assert window.busy(LANES["cloud"]) == pytest.approx(0.5)


OLD = {"P1 edge compute": "edge", "P2 uplink": "uplink", "P3 cloud compute": "cloud", "P4 downlink": "downlink"}


def test_a_time_line_of_an_earlier_version_is_read_with_the_lanes_that_it_has(tmp_path):
    path = tmp_path / "old.json"
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": title}}
        for number, title in enumerate(OLD)
    ]
    events = [
        {**EVENT, "cat": phase, "tid": number, "name": "forward 3", "ts": 10.0 * number, "args": {"step": 3}}
        for number, phase in enumerate(OLD.values())
    ]
    path.write_text(json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}))
    trace = load(path)
    assert list(trace.titles.values()) == list(OLD)
    assert summary(choose_window(trace, 1)).startswith("steps 3 to 3: ")


@pytest.mark.first_case
@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_is_drawn(ending, magic, tmp_path):
    path = tmp_path / "new" / f"picture.{ending}"
    draw(window_of(pipeline(EQUAL, 2, 30), 12), path)
    assert path.read_bytes().startswith(magic)


def test_a_picture_that_cannot_be_written_is_said_so(tmp_path):
    window = window_of(pipeline(EQUAL, 2, 30), 12)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "picture.wav", tmp_path / "file" / "picture.png"):
        with pytest.raises(ConfigError, match=f"picture {path} cannot be written: "):
            draw(window, path)


def test_without_matplotlib_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="needs matplotlib, which is not installed"):
        draw(window_of(pipeline(EQUAL, 2, 30), 12), tmp_path / "picture.png")


def test_the_command_says_the_figures_and_draws(tmp_path):
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command()(timeline)
    spans = pipeline(EQUAL, 2, 30)
    trace = write(spans, tmp_path / "out.json")
    said = CliRunner().invoke(app, ["timeline", str(trace), "--from", "10", "--steps", "8"])
    assert said.exit_code == 0
    assert said.output.strip() == summary(window_of(spans, 8, 10))
    assert said.output.startswith("steps 10 to 17: 0.7 steps/s, 3.0 of 4 phases at work at once (P1 edge compute 7")
    drawn = CliRunner().invoke(app, ["timeline", str(trace), "--png", str(tmp_path / "picture.png")])
    assert drawn.output.splitlines()[-1] == f"picture: {tmp_path / 'picture.png'}"
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert isinstance(CliRunner().invoke(app, ["timeline", str(trace), "--from", "99"]).exception, ConfigError)
