"""Traces: no bits are lost or added, and every published format is read correctly."""

import lzma
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning import Trace, load_trace
from shared.errors import PlanError

pieces = st.lists(st.tuples(st.floats(0.01, 10.0), st.just(0.0) | st.floats(1.0, 1e8)), min_size=1, max_size=12).filter(
    lambda drawn: any(rate for _, rate in drawn)
)
traces = pieces.map(lambda drawn: Trace.of_durations([duration for duration, _ in drawn], [rate for _, rate in drawn]))
moments = st.floats(0.0, 500.0)


@given(traces, moments, st.floats(1.0, 1e9))
def test_a_transfer_ends_when_its_bits_have_passed(trace, start, bits):
    end = trace.finish(start, bits)
    assert end >= start
    carried = trace.bits_until(end) - trace.bits_until(start)
    assert carried == pytest.approx(bits, rel=1e-6, abs=1e-6 * trace.bits_until(end) + 1e-3)


@given(traces, moments)
def test_a_trace_repeats(trace, moment):
    period = trace.duration_seconds
    assert trace.bits_until(moment + period) == pytest.approx(
        trace.bits_until(moment) + trace.mean * period, rel=1e-6, abs=1e-3
    )


def test_rates_by_hand():
    trace = Trace([0.0, 1.0, 3.0], [10.0, 0.0])
    assert trace.mean == pytest.approx(10 / 3)
    assert trace.mean_between(0.5, 1.5) == pytest.approx(5.0)
    assert trace.mean_between(2.5, 3.5) == pytest.approx(5.0)
    assert trace.finish(0.5, 5.0) == pytest.approx(1.0)
    assert trace.finish(0.5, 6.0) == pytest.approx(3.1)  # the rest waits for the next pass
    assert trace.finish(2.0, 0.0) == 2.0


@pytest.mark.parametrize(
    ("times", "rates", "said"),
    [
        ([0.0], [], "is empty"),
        ([0.0, 1.0], [0.0], "carries nothing"),
        ([0.0, 1.0, 1.0], [1.0, 1.0], "must rise"),
        ([0.0, 1.0, math.inf], [1.0, 1.0], "must rise"),
        ([0.0, math.nan], [1.0], "must rise"),
        ([1.0, 2.0], [1.0], "the first is 0"),
        ([0.0, 1.0, 2.0], [1.0], "n \\+ 1 times"),
        ([0.0, 1.0], [-1.0], "0 or more"),
        ([0.0, 1.0], [math.nan], "0 or more"),
        ([0.0, 1.0], [math.inf], "0 or more"),
    ],
)
def test_a_malformed_trace_is_refused(times, rates, said):
    with pytest.raises(PlanError, match=f"^here: .*{said}"):
        Trace(times, rates, "here")


def read(tmp_path, text, name="trace", **options):
    path = tmp_path / name
    path.write_text(text)
    return load_trace(path, **options)


def test_mahimahi_is_packets_at_milliseconds(tmp_path):
    trace = read(tmp_path, "0\n50\n50\n\n150\n200\n")
    assert trace.duration_seconds == 0.2
    assert trace.bits_per_second == pytest.approx([3 * 12000 / 0.1, 2 * 12000 / 0.1])


def test_mahimahi_may_be_compressed(tmp_path):
    path = tmp_path / "trace.xz"
    path.write_bytes(lzma.compress(b"10\n20\n"))
    assert load_trace(path).mean == pytest.approx(2 * 12000 / 0.02)


def test_the_ghent_log_is_bytes_in_intervals(tmp_path):
    trace = read(tmp_path, "1450274031248 725 51.06 3.73 1000 500\n1450274032248 1725 51.06 3.73 3000 1000\n")
    assert trace.times_seconds == [0.0, 0.5, 1.5]
    assert trace.bits_per_second == [16000.0, 24000.0]


@pytest.mark.parametrize("header", ["", "second,bytes\n"])
def test_a_csv_row_holds_until_the_next(tmp_path, header):
    trace = read(tmp_path, f"{header}1,1000\n2,0\n4,500\n")
    assert trace.times_seconds == [0.0, 1.0, 3.0, 5.0]
    assert trace.bits_per_second == [8000.0, 0.0, 4000.0]


@pytest.mark.parametrize(
    ("header", "bits"),
    [
        ("second,bytes per second", 8.0),
        ("seconds,uplink_bytes_per_second", 8.0),
        ("t,bits_per_second", 1.0),
        ("time,bps", 1.0),
        ("second,kbit/s", 1e3),
        ("second,mbit_per_second", 1e6),
        ("second, Mbps", 1e6),
        ("second,gigabit per second", 1e9),
        ("second,MByte/s", 8e6),
    ],
)
def test_a_csv_is_read_in_the_unit_that_its_header_names(tmp_path, header, bits):
    assert read(tmp_path, f"{header}\n0,3\n1,1.5\n").bits_per_second == [3 * bits, 1.5 * bits]


@pytest.mark.parametrize("header", ["second,rate", "second,packets_per_second", "second,", "mbit_per_second,second"])
def test_a_csv_whose_header_names_no_unit_is_refused(tmp_path, header):
    with pytest.raises(PlanError, match="its second column must name its unit, as bytes_per_second"):
        read(tmp_path, f"{header}\n0,3\n")


def test_a_csv_of_one_row_lasts_a_second(tmp_path):
    assert read(tmp_path, "7,1000").times_seconds == [0.0, 1.0]


FIVE_G = "####\nRun 1\n1.5,0,2\n####\nRun 2\n0.1,0.2\n1,2\n0.0,0.2,0.3\n10,20,30\n"


def test_a_5g_run_is_sampled_rates_or_two_radios_summed(tmp_path):
    assert read(tmp_path, FIVE_G).bits_per_second == [1.5e6, 0.0, 2e6]
    trace = read(tmp_path, FIVE_G, run=2)
    assert trace.bits_per_second == pytest.approx([10e6, 1e6, 22e6, 30e6])
    assert trace.times_seconds == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("hello world\n", "begins no trace that is known"),
        ("1 2 3\n", "begins no trace that is known"),
        ("5\n3\n", "must not fall"),
        ("-5\n3\n", "must not fall"),
        ("0\n0\n", "its last line is its length"),
        ("1\n99999999999999\n", "its last line is its length"),
        ("1\nx\n", 'line 2 is "x"'),
        ("1\n2 3\n", "line 2"),
        ("1\nnan\n", "line 2"),
        ("1 2 3 4 5 0\n", "interval"),
        ("1 2 3 4 0 5\n", "carries nothing"),
        ("1 2 3 4 -5 5\n", "0 or more"),
        ("1,5\n1,5\n", "must rise"),
        ("1,-5\n", "0 or more"),
        ("1,0\n2,0\n", "carries nothing"),
        ("1,5\n2\n", "line 2"),
        ("second,bytes\n", "below its header"),
        ("Run 1\n", "a line of rates"),
        ("#\n1,2\n", "below a line"),
        ("Run 1\n1,x\n", "must hold numbers"),
        ("Run 1\n0.1,0.2\n1\n", "as many times as rates"),
        ("Run 1\n-1\n1\n", "times must be from 0"),
        ("Run 1\n1e15\n1\n", "times must be from 0"),
        ("Run 2\n1,2\n", "there is no run 1; it has 2"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, text, said):
    with pytest.raises(PlanError, match=rf"trace.*{said}"):
        read(tmp_path, text)


def test_a_run_is_only_of_5g_lists(tmp_path):
    with pytest.raises(PlanError, match="only lists of 5G runs"):
        read(tmp_path, "1\n2\n", run=2)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "cut.xz").write_bytes(lzma.compress(b"1\n2\n" * 1000)[:-20])
    (tmp_path / "not.xz").write_bytes(b"1\n2\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("cut.xz", "not.xz", "binary", "absent", "."):
        with pytest.raises(PlanError, match=str(tmp_path)):
            load_trace(tmp_path / name)


@given(st.text(alphabet="0123456789.,-# \nRune", max_size=60))
def test_whatever_a_file_holds_is_a_trace_or_one_sentence(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_text(text)
    try:
        trace = load_trace(path)
    except PlanError:
        return
    assert trace.mean > 0


@pytest.mark.parametrize(
    ("name", "megabits", "duration"),
    [
        ("mahimahi/TMobile-LTE-short.up.xz", 13.32, 140.0),
        ("mahimahi/Verizon-LTE-short.down.xz", 5.03, 140.0),
        ("ghent_report_bus_0001.log", 27.6, 606.7),
        ("wifi/Traces/11_1_wifi.csv", 44.1, 100.0),
        ("5g_uplink/throughput/static/lte/away_p1.list", 43.5, 15.4),
        ("5g_uplink/throughput/driving/5g/throughput.list", 32.8, 807.5),
    ],
)
def test_the_recorded_traces_are_read(shared_data, name, megabits, duration):
    trace = load_trace(shared_data / "traces" / name)
    assert trace.mean / 1e6 == pytest.approx(megabits, rel=0.01)
    assert trace.duration_seconds == pytest.approx(duration, rel=0.01)
