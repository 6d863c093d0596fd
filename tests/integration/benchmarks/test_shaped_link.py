"""Real packets between two network namespaces: as fast, as far and as broken as asked, and gone afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.net import LinkError, Measure, Namespace, linked_namespaces, meshed_namespaces, starred_namespaces
from benchmarks.net.namespaces import missing
from benchmarks.net.shaping import OUTAGE_BITS_PER_SECOND, LinkEnd, check_trace, play
from benchmarks.net.tools import missing_for, wait_for
from tests.support.running import StandardError

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[3]
LONG_SECONDS = 3.0
"""A machine that stands still for a tenth of a second does not distort a measurement of this length."""
needs_link = [pytest.mark.root, pytest.mark.skipif(missing() is not None, reason=f"a shaped link {missing()}")]
needs_loss = pytest.mark.skipif(missing_for("nft") is not None, reason=f"loss {missing_for('nft')}")


def of_ours(pid: int) -> list[str]:
    """The namespaces that a process has made and not removed."""
    return [path.name for path in Path("/run/netns").glob(f"isthmus-*-{pid}-*")]


def nominal(side: Namespace) -> float | None:
    """Bits per second that the kernel holds this side to; None while it does not."""
    shown = side.run(["tc", "-j", "qdisc", "show", "dev", "link0", "root"], capture_output=True, check=True).stdout
    rate = json.loads(shown)[0]["options"].get("rate")
    return None if rate is None else rate * 8


def largest_unit(side: Namespace) -> int:
    """Bytes of the largest unit that this side hands to its shaper at once."""
    shown = side.run(["ip", "-j", "-d", "link", "show", "link0"], capture_output=True, check=True).stdout
    return json.loads(shown)[0]["gso_max_size"]


def carried(ends: list[LinkEnd], rate: float) -> list[float]:
    """Bits of frames per second that pass each of these ends, which send at once, past their slow start.

    Not of payload as it arrives: what TCP holds back behind a lost packet comes all at once.
    """

    def marks(size_bytes: float) -> list[tuple[int, float]]:
        """Bytes that have passed each end, and when that was read, once all have passed so many more than before."""
        before = [end.sent_bytes() for end in ends]
        marks: list[tuple[int, float]] = []

        def passed() -> bool:
            marks[:] = [(end.sent_bytes(), time.monotonic()) for end in ends]
            return all(now >= then + size_bytes for (now, _), then in zip(marks, before, strict=True))

        wait_for(passed, f"the passing of {size_bytes:.0f} bytes")
        return marks

    first, last = marks(0.5 * rate / 8), marks(1.5 * rate / 8)
    return [(b[0] - a[0]) * 8 / (b[1] - a[1]) for a, b in zip(first, last, strict=True)]


# --- what needs no root


def test_a_trace_is_played_at_its_times_however_long_each_change_takes():
    now, played = 5.0, []

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    def shape(bits_per_second: float) -> None:
        nonlocal now
        played.append((now - 5.0, bits_per_second))
        now += 0.4

    trace = [(0.5, 2e6), (0.7, 1e6), (2.0, 0.0)]
    play(trace, shape, wait=wait, clock=lambda: now)
    assert played == [(0.5, 2e6), (pytest.approx(0.9), 1e6), (2.0, OUTAGE_BITS_PER_SECOND)]


def test_a_trace_stops_when_it_is_told_to():
    played: list[float] = []
    play([(0.0, 1e6), (1.0, 2e6)], played.append, wait=lambda _: len(played) == 1, clock=lambda: 0.0)
    assert played == [1e6]


@pytest.mark.parametrize("trace", [[(-0.1, 1e6)], [(1.0, 1e6), (1.0, 2e6)], [(0.0, -1.0)], [(0.0, float("nan"))]])
def test_a_trace_that_makes_no_sense_is_refused(trace):
    with pytest.raises(LinkError, match=rf"entry {len(trace) - 1} "):
        check_trace(trace)


def test_without_root_there_is_one_clear_sentence(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LinkError, match="needs root"), linked_namespaces("test"):
        pass


# --- what does


class TestLink:
    pytestmark = needs_link

    @pytest.mark.parametrize("delay_seconds", [0.0, 0.04])
    def test_each_direction_has_its_rate(self, delay_seconds):
        with linked_namespaces("test", delay_seconds=delay_seconds) as link:
            measure = Measure(link)
            for up, down in ((10e6, 40e6), (20e6, 10e6)):
                link.shape(up, down)
                for end, way, rate in ((link.edge.end, "uplink", up), (link.cloud.end, "downlink", down)):
                    sending = measure.start(way, LONG_SECONDS)
                    assert carried([end], rate) == [pytest.approx(rate, rel=0.08)]
                    assert measure.wait(sending) == pytest.approx(0.956 * rate, rel=0.5)
            link.unshape()
            assert measure.uplink(0.5) > 100e6

    def test_a_message_after_a_pause_is_not_carried_for_nothing(self):
        with linked_namespaces("test") as link:
            link.shape(10e6, 10e6)
            assert Measure(link).message(50_000) > 0.8 * 50_000 * 8 / 10e6

    @pytest.mark.parametrize("rate", [0.25e6, 0.5e6, 1e6, 2e6, 4e6])
    def test_a_slow_link_carries_its_rate_and_no_feature_for_nothing(self, rate):
        with linked_namespaces("test") as link:
            measure = Measure(link)
            link.shape(rate, rate)
            for end, way in ((link.edge.end, "uplink"), (link.cloud.end, "downlink")):
                sending = measure.start(way, LONG_SECONDS)
                assert carried([end], rate) == [pytest.approx(rate, rel=0.08)]
                assert measure.wait(sending) == pytest.approx(0.956 * rate, rel=0.5)
            assert measure.message(20_000) > 0.93 * 20_000 * 8 / rate

    @pytest.mark.parametrize("rate", [100e6, 500e6])
    def test_a_fast_link_carries_its_rate_in_units_that_its_shaper_takes_whole(self, rate):
        with linked_namespaces("test") as link:
            usual = largest_unit(link.edge)
            link.shape(rate, rate)
            measure = Measure(link)
            sending = measure.start("uplink", LONG_SECONDS)
            assert carried([link.edge.end], rate) == [pytest.approx(rate, rel=0.08)]
            measure.wait(sending)
            burst = link.edge.run(
                ["tc", "-j", "qdisc", "show", "dev", "link0", "root"], capture_output=True, check=True
            )
            assert largest_unit(link.edge) < json.loads(burst.stdout)[0]["options"]["burst"]
            assert measure.message(500_000) > 0.9 * 500_000 * 8 / rate
            link.unshape()
            assert largest_unit(link.edge) == usual

    def test_machines_of_a_mesh_see_each_other_over_links_of_their_own(self):
        with meshed_namespaces("test", ["a", "b", "c"]) as mesh:
            mesh.shape(2e6)
            a, b, c = mesh.machines.values()
            at_once = [Measure(SimpleNamespace(edge=a, cloud=far)) for far in (b, c)]
            sending = [measure.start("uplink", LONG_SECONDS) for measure in at_once]
            ends = [mesh.ends["a", far] for far in ("b", "c")]
            assert carried(ends, 2e6) == [pytest.approx(2e6, rel=0.08)] * 2
            for started in sending:
                assert Measure.wait(started) == pytest.approx(0.956 * 2e6, rel=0.5)

    def test_machines_of_a_star_reach_each_other_over_the_links_of_both(self):
        with starred_namespaces("test", "hub", ["a", "b"]) as star:
            star.shape(2e6)
            sending = (measure := Measure(SimpleNamespace(edge=star.machines["a"], cloud=star.machines["b"]))).start(
                "uplink", LONG_SECONDS
            )
            ends = [star.ends["a", "hub"], star.ends["hub", "b"]]
            assert carried(ends, 2e6) == [pytest.approx(2e6, rel=0.08)] * 2
            assert measure.wait(sending) == pytest.approx(0.956 * 2e6, rel=0.5)
            assert ("a", "b") not in star.ends

    def test_a_round_trip_takes_the_delay(self):
        with linked_namespaces("test", delay_seconds=0.06) as link:
            assert 0.06 <= Measure(link).round_trip() < 0.09

    def test_a_trace_changes_the_rate_under_load(self):
        with linked_namespaces("test") as link:
            measure = Measure(link)
            load = measure.start("uplink", 2.0)
            with link.replay([(0.0, 40e6), (0.3, 10e6)], [(0.0, 40e6)]):
                wait_for(lambda: nominal(link.edge) == 10e6, "the change of the rate")
                wait_for(lambda: nominal(link.cloud) == 40e6, "the rate that stays")
            measure.wait(load)
            sending = measure.start("uplink", LONG_SECONDS)
            assert carried([link.edge.end], 10e6) == [pytest.approx(10e6, rel=0.08)]
            measure.wait(sending)

    @needs_loss
    def test_loss_slows_a_connection_and_ends_when_asked(self):
        with linked_namespaces("test", delay_seconds=0.02) as link:
            measure = Measure(link)
            link.lose(0.05, 0.0)
            lossy = measure.uplink(1.0)
            link.lose(0.0, 0.0)
            assert lossy < 0.3 * measure.uplink(1.0)

    @needs_loss
    @pytest.mark.parametrize("delay_seconds", [0.0, 0.01])
    def test_a_silent_link_keeps_connections_and_a_link_taken_down_comes_back(self, delay_seconds):
        with linked_namespaces("test", delay_seconds=delay_seconds) as link:
            measure = Measure(link)
            link.shape(10e6, 10e6)
            for breaking, restoring in (
                (lambda: link.lose(1.0, 1.0), lambda: link.lose(0.0, 0.0)),
                (link.down, link.up),
            ):
                before = link.edge.end.sent_bytes()
                running = measure.start("message", 100_000, 4, 0.1)  # 0.7 s on a whole link
                wait_for(lambda seen=before: link.edge.end.sent_bytes() > seen + 50_000, "the first message")
                breaking()
                with pytest.raises(subprocess.TimeoutExpired):
                    running.wait(1.2)
                restoring()
                assert measure.wait(running) > 0.05

    def test_the_sides_see_each_other_and_nothing_else(self):
        with linked_namespaces("test") as link:
            for side, other in ((link.edge, link.cloud), (link.cloud, link.edge)):
                shown = side.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout
                assert [line.split()[3] for line in shown.splitlines()] == ["127.0.0.1/8", f"{side.address}/30"]
                routes = side.run(["ip", "route"], capture_output=True, text=True, check=True).stdout.splitlines()
                assert len(routes) == 1
                assert "congctl cubic" in routes[0]
                assert other.address != side.address

    @pytest.mark.parametrize("delay_seconds", [0.0, 0.01])
    def test_nothing_is_left_behind_after_an_exception(self, delay_seconds):
        started = []

        def fail() -> None:
            with linked_namespaces("test", delay_seconds=delay_seconds) as link:
                started.append(link.edge.popen(["sleep", "1000"]))
                link.edge.run(["sh", "-c", "trap '' TERM HUP; setsid sleep 1000 & exit"], check=True)
                assert len(of_ours(os.getpid())) == 2
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert of_ours(os.getpid()) == []
        assert started[0].returncode == -signal.SIGTERM

    @pytest.mark.parametrize("delay_seconds", [0.0, 0.01])
    @pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
    def test_nothing_is_left_behind_after_a_signal(self, sent, delay_seconds):
        program = (
            "import signal; from benchmarks.net import linked_namespaces\n"
            f"with linked_namespaces('test', delay_seconds={delay_seconds}) as link:\n"
            "    with linked_namespaces('inner'):\n"
            "        print('up', flush=True); signal.pause()"
        )
        with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as maker:
            assert maker.stdout is not None
            assert maker.stdout.readline() == "up\n"
            assert len(of_ours(maker.pid)) == 4
            maker.send_signal(sent)
        assert maker.returncode == -sent
        if sent is signal.SIGKILL:  # only the next caller can do it
            with linked_namespaces("test"):
                pass
        assert of_ours(maker.pid) == []

    def test_two_links_at_once_do_not_meet(self):
        with linked_namespaces("test") as one, linked_namespaces("test") as two:
            assert len({one.edge.name, one.cloud.name, two.edge.name, two.cloud.name}) == 4
            one.shape(10e6, 10e6)
            assert Measure(two).uplink(0.5) > 50e6

    def test_the_doctor_sees_each_direction_and_the_delay(self):
        with linked_namespaces("test", delay_seconds=0.04) as link:
            link.shape(4e6, 16e6)
            flags = [
                f"--set=server.listen={link.cloud.address}:0",
                "--set=server.insecure=true",
                "--set=log.format=json",
            ]
            serve = [sys.executable, "-m", "cloud_trainer.main", "serve", *flags]
            said = StandardError(link.cloud.popen(serve, cwd=ROOT, stderr=subprocess.PIPE, text=True))
            address = said.first_event("listening")["address"]
            doctor = [sys.executable, "-m", "edge_agent.main", "doctor", "--json", f"--set=trainer.address={address}"]
            done = link.edge.run(doctor, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
        said.join()
        found = {finding["check"]: finding["result"] for finding in json.loads(done.stdout)}
        megabits = {check: float(found[check].split()[2]) for check in ("uplink", "downlink")}
        assert 0.75 * 4 < megabits["uplink"] < 1.1 * 4, found
        assert 0.75 * 16 < megabits["downlink"] < 1.1 * 16, found
        assert 40 <= float(found["round trip"].split()[0]) < 100, found
