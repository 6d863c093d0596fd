"""`make demo-engine`: what the decision engine is for, as a race over a link that drops, on a device that becomes slow.

One run has the engine. Beside it, at the same time and on the same machine, the same training runs with each cut kept, and on
the device alone. Each run has a device of its own, which sleeps for as long as its blocks would take there, and a link of its
own, a relay in this process. All devices and all links change at the same moments. With K = 0 all runs take the same steps, so
what counts is when each of them has done as many as the engine's run does in the race. For the slower ones that is reckoned
from their pace since the last change. Ends in run/demo-engine with a picture, where matplotlib is installed.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.net.relay import Relay
from benchmarks.networks import PACE
from deploy.demo import demo
from deploy.demo.race import Moment, Phase, Race, Racer
from deploy.demo.race_picture import draw_race
from deploy.demo.slow_network import DEVICE_SECONDS
from shared.errors import PlanError

ROOT = demo.HERE.parents[1]
CONFIG = demo.HERE / "engine.toml"
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


def main() -> int:
    """Profile, race and draw; returns the exit code."""
    demo.end_on_sigterm()
    try:
        race = raced()
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    print(race.verdict)
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = [FOLDER / "demo-engine.png", FOLDER / "demo-engine.svg"]
    try:
        draw_race(race, *paths)
    except PlanError as failure:
        print(f"no picture: {failure}")
    else:
        print("\n".join(f"picture: {path}" for path in paths))
    return 0


def raced() -> Race:
    """Profile and race. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_Demo(Path(folder)).run())


class _Demo:
    """The processes of the demo, their links and their devices."""

    def __init__(self, scratch: Path) -> None:
        """scratch: a folder for files that end with the demo."""
        self._scratch = scratch
        self._relays: list[Relay] = []

    async def run(self) -> Race:
        """Measure the pair, then race. Raises CalledProcessError."""
        self._set_pace(TRAINER, 0.0)
        self._set_pace(DEVICE, 1.0)
        async with AsyncExitStack() as stack:
            _, address = stack.enter_context(
                demo.running_trainer(self._scratch / "address", *TRAINER_FLAGS, environment=self._environment(TRAINER))
            )
            profile = self._scratch / "profile.json"
            await self._profile(await self._linked(stack, address), profile)
            engine = (f"trainer.address={await self._linked(stack, address)}", f"engine.profile={profile}")
            ways: dict[str, tuple[str, ...]] = {ENGINE: engine}
            for cut in range(1, len(DEVICE_SECONDS)):
                linked = await self._linked(stack, address)
                ways[f"cut {cut} kept"] = (f"trainer.address={linked}", f"deployment.cut={cut}")
            ways[ALONE] = ("trainers=[]",)
            processes = {name: await stack.enter_async_context(self._racer(flags)) for name, flags in ways.items()}
            return await self._race(processes)

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
            demo.SCRIPTS / "edge-agent", "profile", *flags, env=self._environment(DEVICE)
        )
        try:
            if await process.wait():
                raise subprocess.CalledProcessError(process.returncode or 1, "edge-agent profile")
        finally:
            await _end(process)

    @asynccontextmanager
    async def _racer(self, flags: Sequence[str]) -> AsyncIterator[Process]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "deploy.demo.racer", str(CONFIG), *flags),
            env=self._environment(DEVICE),
            stdin=PIPE,
            stdout=PIPE,
        )
        try:
            yield process
        finally:
            await _end(process)

    async def _race(self, processes: Mapping[str, Process]) -> Race:
        """Begin all runs at once, the engine's being the first, and hear of their steps while the world changes."""
        for process in processes.values():
            assert process.stdout is not None
            if not await process.stdout.readline():
                raise subprocess.CalledProcessError(await process.wait() or 1, "edge-agent run")
        print(f"$ edge-agent run, {len(processes)} times", flush=True)
        began = asyncio.get_running_loop().time()
        racers = [Racer(name) for name in processes]
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.write(b"begin\n")
        world = asyncio.create_task(self._change(began))
        hearing = [
            asyncio.create_task(_hear(racer, process, began))
            for racer, process in zip(racers, processes.values(), strict=True)
        ]
        over, _ = await asyncio.wait([world, *hearing], return_when=asyncio.FIRST_COMPLETED)
        for task in (world, *hearing):
            task.cancel()
        await asyncio.gather(world, *hearing, return_exceptions=True)
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
