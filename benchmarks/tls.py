"""Cost of encryption and a token in a step at 4 MB features: `python -m benchmarks.tls [ROUNDS]`. Goal: less than 3 %.

Two trainers run beside each other, one in clear text, one with mutual TLS and a token; on loopback, where nothing hides the
work, and through a relay of 200 Mbit/s, where the link does. A round trains a while with the plain one, with the secure one,
and with the plain one again; ratios are taken within a round, so that what else the machine does falls on both alike. Plain
to plain is the noise. The agent's processor time says what encryption costs on a machine that is busy with other things.
"""

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import structlog
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.net import Relay
from benchmarks.overhead import CASES, config
from benchmarks.support.machine import machine
from benchmarks.support.processes import trainer_process
from benchmarks.support.report import Spread
from cloud_trainer.control.certificates import Identity, issue, make_authority
from isthmus import train
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tokens import make_token

ROUNDS = 5
CASE = "4 MB"
STEPS, WARM_UP = 30, 6
LINKS = {"loopback": None, "200 Mbit/s": 200e6}


@dataclass(frozen=True)
class Cost:
    """The cost of one step: seconds on the clock (median), and of the agent's processor (mean)."""

    seconds: float
    processor_seconds: float


def make_access(folder: Path) -> tuple[list[str], list[str]]:
    """Flags of a trainer and of an agent that know each other by certificate and token; the files lie in `folder`."""
    authority = make_authority("benchmark", 1)
    authority.write(folder / "ca.pem", folder / "ca.key")
    token, table = make_token("edge", list(Scope))
    (folder / "tokens.toml").write_text(table)

    def tls(identity: Identity) -> list[str]:
        certificate, key = folder / f"{identity.name}.pem", folder / f"{identity.name}.key"
        issue(authority, identity, 1).write(certificate, key)
        return [f"tls.certificate={certificate}", f"tls.key={key}", f"tls.ca={folder / 'ca.pem'}"]

    trainer, edge = tls(Identity("trainer", ("127.0.0.1",))), tls(Identity("edge"))
    return [*trainer, f"auth.tokens={folder / 'tokens.toml'}"], [*edge, f"trainer.token={token}"]


@contextmanager
def linked(address: str, bits_per_second: float | None) -> Iterator[str]:
    """An address from which the trainer at `address` is reached over a link of this rate; None is no link at all."""
    if bits_per_second is None:
        yield address
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    relay = Relay(
        "127.0.0.1",
        int(address.rpartition(":")[2]),
        uplink_bits_per_second=bits_per_second,
        downlink_bits_per_second=bits_per_second,
    )
    try:
        asyncio.run_coroutine_threadsafe(relay.__aenter__(), loop).result()
        yield relay.address
        asyncio.run_coroutine_threadsafe(relay.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def step_cost(address: str, *access: str) -> Cost:
    """The cost of a step of a short run."""
    moments: list[tuple[float, float]] = []
    run = config(*CASES[CASE], address, *access, f"training.max_steps={STEPS}")
    train(run, lambda _progress: moments.append((time.perf_counter(), time.process_time())))
    steady = moments[WARM_UP:]
    return Cost(
        statistics.median(after - before for (before, _), (after, _) in pairwise(steady)),
        (steady[-1][1] - steady[0][1]) / (len(steady) - 1),
    )


def _row(name: str, rounds: list[tuple[Cost, Cost, Cost]]) -> list[str]:
    def percent(values: list[float]) -> str:
        return Spread.of([100 * (value - 1) for value in values]).show() + " %"

    plain = [(before.seconds + after.seconds) / 2 for before, _, after in rounds]
    more = [
        secure.processor_seconds - (before.processor_seconds + after.processor_seconds) / 2
        for before, secure, after in rounds
    ]
    return [
        name,
        Spread.of(plain).show(1e3),
        percent([secure.seconds / seconds for (_, secure, _), seconds in zip(rounds, plain, strict=True)]),
        percent([after.seconds / before.seconds for before, _, after in rounds]),
        Spread.of(more).show(1e3, 2),
    ]


def main() -> None:
    """Measure all rounds and print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))  # warnings
    torch.set_num_threads(1)
    fixed = ["compute.threads=1", "compute.device=cpu"]
    table = Table(
        "link", "plain step, ms", "TLS and token / plain", "plain / plain", "agent's processor, ms more a step"
    )
    with tempfile.TemporaryDirectory() as name:
        trainer, edge = make_access(Path(name))
        with trainer_process(*fixed) as plain_address, trainer_process(*fixed, *trainer) as secure_address:
            for link, rate in LINKS.items():
                with linked(plain_address, rate) as plain, linked(secure_address, rate) as secure:
                    measured = [(step_cost(plain), step_cost(secure, *edge), step_cost(plain)) for _ in range(rounds)]
                table.add_row(*_row(link, measured))
    console = Console(width=150)
    console.print(f"{CASE} features, {rounds} rounds of {STEPS - WARM_UP} steps, median (quartiles); {machine()}")
    console.print(table)


if __name__ == "__main__":
    main()
