"""`make demo-engine`: what the decision engine is for, as a race over a link that drops, on a device that becomes slow.

One run has the engine. Beside it, at the same time and on the same machine, the same training runs with each cut kept, and on
the device alone. Each run has a device of its own, which sleeps for as long as its blocks would take there, and a link of its
own, a relay in this process. All devices and all links change at the same moments. With K = 0 all runs take the same steps, so
what counts is when each of them has done as many as the engine's run does in the race. For the slower ones that is reckoned
from their pace since the last change. Ends in run/demo-engine with a picture, where matplotlib is installed.

    python -m deploy.demo.demo_engine --runs 10 --busy --least 0.95

races ten times beside a process that keeps a core busy, and says how fast the engine's run was against the fastest other one.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from benchmarks.net.relay import Relay
from benchmarks.networks import PACE
from deploy.demo.race import Moment, Phase, Race, Racer, note_of
from deploy.demo.race_picture import draw_race
from deploy.demo.slow_network import DEVICE_SECONDS
from edge_agent.demo import processes
from shared.errors import PlanError

ROOT = Path(__file__).resolve().parents[2]
CONFIG = processes.FILES / "engine.toml"
PHASES = (
    Phase(0.0, 30e6, 1.0, "30 Mbit/s"),
    Phase(8.0, 0.9e6, 1.0, "0.9 Mbit/s"),
    Phase(26.0, 0.9e6, 5.0, "and the device 5 times as slow"),
)
RACE_SECONDS = 60.0
"""So long of a training of many epochs: what the engine may risk is a hundredth of the steps that its run has to go."""
FOLDER = Path("run/demo-engine")
ENGINE, ALONE = "the engine", "the device alone"
TRAINER, DEVICE = "trainer", "device"
TRAINER_FLAGS = (
    'models.allowed=["deploy.demo.slow_network"]',
    "checkpoints.location=none",
    "control.listen=none",
    "link.chunk_bytes=4096",
    "log.level=error",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, race and draw; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="demo_engine", description="races a run with the engine against every cut kept"
    )
    parser.add_argument("--runs", type=int, default=1, help="number of races, one after the other")
    parser.add_argument("--busy", action="store_true", help="keep a core of this machine busy during each race")
    parser.add_argument("--least", type=float, help="fail where the engine's run is slower than so many times the best")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    processes.end_on_sigterm()
    ratios = []
    for number in range(1, options.runs + 1):
        try:
            race = raced(busy=options.busy)
        except KeyboardInterrupt:
            return 130
        except subprocess.CalledProcessError as failed:
            return failed.returncode
        ratio, best = race.against_best
        ratios.append(ratio)
        print(race.verdict)
        _draw(race)
        print(f"race {number} of {options.runs}: {ratio:.2f} times as fast as the best, {best.name}", flush=True)
    if options.runs > 1:
        print(f"all: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; the least is {min(ratios):.2f}")
    return 0 if options.least is None or min(ratios) >= options.least else 1


def _draw(race: Race) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = [FOLDER / "demo-engine.png", FOLDER / "demo-engine.svg"]
    try:
        draw_race(race, *paths)
    except PlanError as failure:
        print(f"no picture: {failure}")
    else:
        print("\n".join(f"picture: {path}" for path in paths))


def raced(*, busy: bool = False) -> Race:
    """Profile and race. busy: whether a process keeps a core busy during the race. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_Demo(Path(folder), busy=busy).run())


@contextmanager
def busy_core() -> Iterator[None]:
    """A process that computes all the time while the body runs."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


class _Demo:
    """The processes of the demo, their links and their devices."""

    def __init__(self, scratch: Path, *, busy: bool) -> None:
        """scratch: a folder for files that end with the demo."""
        self._scratch, self._busy = scratch, busy
        self._relays: list[Relay] = []

    async def run(self) -> Race:
        """Measure the pair, then race. Raises CalledProcessError."""
        self._set_pace(TRAINER, 0.0)
        self._set_pace(DEVICE, 1.0)
        async with AsyncExitStack() as stack:
            _, address = stack.enter_context(
                processes.running_trainer(
                    self._scratch / "address", *TRAINER_FLAGS, environment=self._environment(TRAINER)
                )
            )
            profile = self._scratch / "profile.json"
            await self._profile(await self._linked(stack, address), profile)
            told = ("log.level=info", "log.format=json")
            engine = (f"trainer.address={await self._linked(stack, address)}", f"engine.profile={profile}", *told)
            ways: dict[str, tuple[str, ...]] = {ENGINE: engine}
            for cut in range(1, len(DEVICE_SECONDS)):
                linked = await self._linked(stack, address)
                ways[f"cut {cut} kept"] = (f"trainer.address={linked}", f"deployment.cut={cut}")
            ways[ALONE] = ("trainers=[]",)
            if self._busy:
                stack.enter_context(busy_core())
            running = {
                name: await stack.enter_async_context(self._racer(flags, PIPE if name == ENGINE else None))
                for name, flags in ways.items()
            }
            return await self._race(running)

    def _environment(self, device: str) -> dict[str, str]:
        """The variables of a process that has the pace of a device."""
        return {**os.environ, "PYTHONPATH": str(ROOT), PACE: str(self._scratch / f"{device}.pace")}

    def _set_pace(self, device: str, slower: float) -> None:
        """Whole or not at all, because sleepers read it all the time."""
        written = self._scratch / "pace.new"
        written.write_text(str(slower))
        written.replace(self._scratch / f"{device}.pace")

    async def _linked(self, stack: AsyncExitStack, address: str) -> str:
        """The address of another link to the trainer."""
        host, _, port = address.rpartition(":")
        rate = PHASES[0].bits_per_second
        relay = Relay(host, int(port), uplink_bits_per_second=rate, downlink_bits_per_second=rate)
        self._relays.append(await stack.enter_async_context(relay))
        return relay.address

    async def _profile(self, address: str, profile: Path) -> None:
        print("$ edge-agent profile", flush=True)
        flags = (f"--config={CONFIG}", f"--trainer={address}", f"--out={profile}", "--repeats=2")
        process = await asyncio.create_subprocess_exec(
            processes.script("edge-agent"), "profile", *flags, env=self._environment(DEVICE)
        )
        try:
            if await process.wait():
                raise subprocess.CalledProcessError(process.returncode or 1, "edge-agent profile")
        finally:
            await _end(process)

    @asynccontextmanager
    async def _racer(self, flags: Sequence[str], stderr: int | None) -> AsyncIterator[Process]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "deploy.demo.racer", str(CONFIG), *flags),
            env=self._environment(DEVICE),
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
        )
        try:
            yield process
        finally:
            await _end(process)

    async def _race(self, running: Mapping[str, Process]) -> Race:
        """Begin all runs at once, the engine's being the first, and hear of their steps while the world changes."""
        for process in running.values():
            assert process.stdout is not None
            if not await process.stdout.readline():
                raise subprocess.CalledProcessError(await process.wait() or 1, "edge-agent run")
        print(f"$ edge-agent run, {len(running)} times", flush=True)
        began = asyncio.get_running_loop().time()
        racers = [Racer(name) for name in running]
        for process in running.values():
            assert process.stdin is not None
            process.stdin.write(b"begin\n")
        world = asyncio.create_task(self._change(began))
        reading = asyncio.create_task(_read_log(racers[0], running[ENGINE], began))
        hearing = [
            asyncio.create_task(_hear(racer, process, began))
            for racer, process in zip(racers, running.values(), strict=True)
        ]
        over, _ = await asyncio.wait([world, *hearing], return_when=asyncio.FIRST_COMPLETED)
        for task in (world, reading, *hearing):
            task.cancel()
        await asyncio.gather(world, reading, *hearing, return_exceptions=True)
        if world not in over:
            raise subprocess.CalledProcessError(1, "edge-agent run")
        return Race(PHASES, racers[0], racers[1:])

    async def _change(self, began: float) -> None:
        """Have all links and devices change as the phases say, until the race is over."""
        loop = asyncio.get_running_loop()
        for phase in PHASES:
            await asyncio.sleep(began + phase.begin_seconds - loop.time())
            print(f"{phase.begin_seconds:4.0f} s: {phase.words}", flush=True)
            for relay in self._relays:
                relay.uplink.bits_per_second = relay.downlink.bits_per_second = phase.bits_per_second
            self._set_pace(DEVICE, phase.slower)
        await asyncio.sleep(began + RACE_SECONDS - loop.time())


async def _read_log(racer: Racer, process: Process, began: float) -> None:
    """Note what a run's log says of its engine, and pass warnings on, until the run ends."""
    assert process.stderr is not None
    async for line in process.stderr:
        try:
            entry = json.loads(line)
        except ValueError:
            sys.stderr.write(line.decode(errors="replace"))
            continue
        if (note := note_of(asyncio.get_running_loop().time() - began, entry)) is not None:
            racer.notes.append(note)
            print(f"{note.seconds:4.0f} s: the engine: {note.words}", flush=True)
        elif entry.get("level") not in ("debug", "info"):
            print(entry.get("event"), file=sys.stderr)


async def _hear(racer: Racer, process: Process, began: float) -> None:
    """Take in what a run tells, until it ends."""
    assert process.stdout is not None
    async for line in process.stdout:
        seconds, steps, loss, cut = json.loads(line)
        moment = Moment(seconds - began, steps, loss, cut)
        if racer.moments and cut != (before := racer.moments[-1].cut):
            print(f"{moment.seconds:4.0f} s: {racer.name} has moved the cut from {before} to {cut}", flush=True)
        racer.moments.append(moment)


async def _end(process: Process) -> None:
    """End a process, if it still runs, as Ctrl-C does."""
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(10.0):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    sys.exit(main())
