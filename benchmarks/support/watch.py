"""Watches a running agent from its own side of the link; other benchmarks run `python -m benchmarks.support.watch WHAT ...`.

`rates METRICS_URL SECONDS` prints what the agent has measured of its link, `calls TRAINER SESSION SECONDS` how long control
calls take beside it. One JSON array on standard output at the end, which comes after so many seconds or with the agent.
"""

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.errors import RefusedError
from shared.telemetry.logs import configure_logs

RATE_INTERVAL_SECONDS = 0.1
CALL_INTERVAL_SECONDS = 0.1


def rates(url: str, seconds: float) -> list[tuple[float, float, float]]:
    """(steps done, uplink, downlink in bits per second) at each look; 0 is not known yet."""
    seen: list[tuple[float, float, float]] = []
    for _ in _until(seconds):
        try:
            with urllib.request.urlopen(url) as response:
                text = response.read().decode()
        except (urllib.error.URLError, ConnectionError):
            if seen:
                break  # the agent has ended
            time.sleep(RATE_INTERVAL_SECONDS)
            continue
        values = {
            (sample.name, sample.labels.get("direction")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        rate = "isthmus_link_bytes_per_second"
        seen.append((values["isthmus_steps_total", None], values[rate, "up"] * 8, values[rate, "down"] * 8))
        time.sleep(RATE_INTERVAL_SECONDS)
    return seen


async def calls(trainer: str, session: str, seconds: float) -> list[float]:
    """Seconds of each GetSession, as the agent's own control channel makes it."""
    taken = []
    async with TrainerClient(TrainerAddressConfig(address=trainer), LinkConfig()) as client:
        for _ in _until(seconds):
            began = time.monotonic()
            try:
                await client.get_session(session)
            except RefusedError:
                break  # the agent has ended
            taken.append(time.monotonic() - began)
            await asyncio.sleep(CALL_INTERVAL_SECONDS)
    return taken


def _until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def main() -> None:
    """Watch as told."""
    configure_logs()  # to standard error: standard output is the array's
    what, *arguments = sys.argv[1:]
    if what == "rates":
        seen: list[object] = [*rates(arguments[0], float(arguments[1]))]
    else:
        seen = [*asyncio.run(calls(arguments[0], arguments[1], float(arguments[2])))]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
