"""Quality of the shaped link of this machine, as a table: the ratio of plain TCP's payload to the nominal rate."""

import time

from benchmarks.net.measure import Measure
from benchmarks.net.namespaces import Link, linked_namespaces

_RATES = (10e6, 50e6, 100e6)
_DELAYS_SECONDS = (0.0, 0.04)
_SECONDS = 3.0
_MESSAGE_BYTES = 100_000
_SETTLE_SECONDS = 0.25


def selftest() -> None:
    """Print the table: a row for each rate and delay, then one for each change of the rate under load.

    A change counts frames at the shaper; above 1 Mbit of rate times delay it is TCP that needs seconds to use more.
    """
    print("nominal  delay |  uplink downlink |  idle RTT loaded RTT | 100 kB message")
    print(" Mbit/s     ms |   ratio    ratio |        ms         ms | ratio to nominal + delay")
    for delay_seconds in _DELAYS_SECONDS:
        with linked_namespaces("selftest", delay_seconds=delay_seconds) as link:
            measure = Measure(link)
            for rate in _RATES:
                link.shape(rate, rate)
                print(_row(measure, rate, delay_seconds), flush=True)
            for before, after in ((100e6, 10e6), (10e6, 100e6), (50e6, 20e6)):
                ratio, took = _change(link, measure, before, after)
                print(
                    f"change {before / 1e6:.0f} to {after / 1e6:.0f} Mbit/s, {delay_seconds * 1e3:.0f} ms: took "
                    f"{took * 1e3:.0f} ms; ratio of frames {ratio:.3f} in the second after {_SETTLE_SECONDS} s",
                    flush=True,
                )


def _row(measure: Measure, rate: float, delay_seconds: float) -> str:
    uplink, downlink = measure.uplink(_SECONDS) / rate, measure.downlink(_SECONDS) / rate
    idle = measure.round_trip()
    load = measure.start("uplink", _SECONDS)
    time.sleep(1.0)
    loaded = measure.round_trip()
    measure.wait(load)
    message = measure.message(_MESSAGE_BYTES) / (_MESSAGE_BYTES * 8 / rate + delay_seconds)
    return (
        f"{rate / 1e6:>7.0f} {delay_seconds * 1e3:>6.0f} | {uplink:>7.3f} {downlink:>8.3f} | "
        f"{idle * 1e3:>9.2f} {loaded * 1e3:>10.1f} | {message:>8.3f}"
    )


def _change(link: Link, measure: Measure, before: float, after: float) -> tuple[float, float]:
    """(payload ratio in the second that begins 0.25 s after the change, seconds that the change itself took)."""
    link.shape(before, before)
    load = measure.start("uplink", _SECONDS + 2.0)
    time.sleep(_SECONDS)
    start = time.monotonic()
    link.edge.end.shape(after)
    took = time.monotonic() - start
    time.sleep(_SETTLE_SECONDS)
    begin, sent = time.monotonic(), link.edge.end.sent_bytes()
    time.sleep(1.0)
    ratio = (link.edge.end.sent_bytes() - sent) * 8 / (time.monotonic() - begin) / after
    measure.wait(load)
    return ratio, took
