"""`make demo-move`: a device on a path among three trainers, which its run chooses among while it trains.

The sites and the path are those of docs/move.md, eight and a half times as fast. Each trainer is a process behind a link of its
own, a relay in this process, whose round trip grows with the distance: 5 ms at the site, 40 ms at its radius, and on like that.
Device and trainers sleep for as long as their blocks would take; the one in the middle is the quickest. With K = 0 each step
waits for its round trip, so another trainer is worth a handover. In the end stands what the simulator makes of the same path.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.net.relay import Relay
from benchmarks.networks import PACE
from benchmarks.rivals.moving import Backbone, Site, World, load_path, load_sites, simulate_moves
from benchmarks.rivals.moving.paths import Path as WorldPath
from benchmarks.rivals.moving.paths import metres_between
from benchmarks.support.live import LiveRun, Moment
from edge_agent.demo import processes
from edge_agent.planning import Question, SearchSpace, load_profile
from edge_agent.planning.families.pair import best_pairs
from shared.errors import IsthmusError
from shared.placement import AGENT

ROOT = Path(__file__).resolve().parents[2]
FASTER = 8.5
"""So many times as fast as in the file, the path takes 70 s."""
BITS_PER_SECOND = 1e8
NEAR_SECONDS, FAR_SECONDS = 0.005, 0.040
"""Round trips at a site, and at its radius."""
DEVICE_PACE, TRAINER_PACE = 0.4, 0.05
"""Times of the network's blocks, in parts of those of `slow_network`."""
COMMON = (
    'model.factory="deploy.demo.slow_network:slow_network"',
    'training.optimizer={name="sgd", learning_rate=0.002, momentum=0.9}',
    "training.epochs=10000",
    "training.evaluate_every_epochs=0",
    "compute.threads=1",
    "checkpoints.location=none",
    "control.listen=none",
    "log.level=error",
)
CHOICE = ("engine.bits=[32]", "engine.max_staleness=0", "choice.probe_bytes_per_minute=3000000")
TRAINER_FLAGS = (
    'models.allowed=["deploy.demo.slow_network"]',
    'peers.allowed=["127.0.0.1:*"]',
    "checkpoints.location=none",
    "control.listen=none",
    "log.level=error",
)


def main() -> int:
    """Profile, move and compare; returns the exit code."""
    processes.end_on_sigterm()
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_Demo(Path(folder)).run())
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    except IsthmusError as failure:
        print(failure, file=sys.stderr)
        return failure.exit_code
    return 0


@dataclass(frozen=True)
class _Stay:
    """A time with one trainer."""

    trainer: str
    begin: Moment
    end: Moment

    @property
    def steps_per_second(self) -> float:
        """Return the pace."""
        seconds = self.end.seconds - self.begin.seconds
        return (self.end.steps - self.begin.steps) / seconds if seconds > 0 else 0.0


class _Demo:
    """The processes of the demo, their links and the device's place."""

    def __init__(self, scratch: Path) -> None:
        """scratch: a folder for files that end with the demo."""
        self._scratch = scratch
        self._sites = load_sites(processes.FILES / "sites.csv")
        path = load_path(processes.FILES / "path.csv")
        self._path = replace(path, seconds=path.seconds / FASTER)
        self._relays: dict[str, Relay] = {}

    async def run(self) -> None:
        """Measure the device and one trainer, and train on the path. Raises CalledProcessError or IsthmusError."""
        self._set_pace(AGENT, DEVICE_PACE)
        async with AsyncExitStack() as stack:
            for site in self._sites:
                self._set_pace(site.name, TRAINER_PACE * site.cloud_factor)
                file, environment = self._scratch / f"{site.name}.address", self._environment(site.name)
                process, address = stack.enter_context(
                    processes.running_trainer(file, *TRAINER_FLAGS, environment=environment)
                )
                host, _, port = address.rpartition(":")
                rate = BITS_PER_SECOND
                link = Relay(host, int(port), uplink_bits_per_second=rate, downlink_bits_per_second=rate)
                relay = self._relays[site.name] = await stack.enter_async_context(link)
                print(f"{site.name}: process {process.pid} at {relay.address}", flush=True)
            self._go_to(0.0)
            profile = self._scratch / "profile.json"
            await self._profile(profile)
            run = LiveRun(self._flags(profile), ["env", f"{PACE}={self._scratch / f'{AGENT}.pace'}"])
            try:
                moments, began = await self._move(run)
            finally:
                await asyncio.to_thread(run.stop)
            print(self._compared(profile, moments, began))

    def _flags(self, profile: Path) -> list[str]:
        each = (f'{{name="{name}", address="{relay.address}"}}' for name, relay in self._relays.items())
        return [*COMMON, *CHOICE, f"trainers=[{', '.join(each)}]", f'engine.profile="{profile}"']

    def _environment(self, device: str) -> dict[str, str]:
        """Return the variables of a process that has the pace of a device."""
        return {**os.environ, "PYTHONPATH": str(ROOT), PACE: str(self._scratch / f"{device}.pace")}

    def _set_pace(self, device: str, pace: float) -> None:
        (self._scratch / f"{device}.pace").write_text(str(pace))

    async def _profile(self, profile: Path) -> None:
        print("$ edge-agent profile", flush=True)
        first = self._relays[self._sites[0].name]
        flags = [f"--set={flag}" for flag in COMMON]
        process = await asyncio.create_subprocess_exec(
            *(str(processes.script("edge-agent")), "profile", *flags),
            *(f"--trainer={first.address}", f"--out={profile}", "--repeats=2"),
            env=self._environment(AGENT),
        )
        try:
            if await process.wait():
                raise subprocess.CalledProcessError(process.returncode or 1, "edge-agent profile")
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    def _go_to(self, second: float) -> Mapping[str, float]:
        """Have all links as they are there. Returns the round trips."""
        trips = round_trips(self._sites, self._path, second)
        for name, relay in self._relays.items():
            for lane in (relay.uplink, relay.downlink):
                lane.one_way_delay_seconds = trips[name] / 2
        return trips

    async def _move(self, run: LiveRun) -> tuple[Sequence[Moment], float]:
        """Go along the path while the run trains. Returns its moments, and the time at which the path began."""
        print("$ edge-agent run", flush=True)
        await asyncio.to_thread(run.steps, 1)
        began, trainer = time.monotonic(), ""
        while (second := time.monotonic() - began) < self._path.duration_seconds:
            trips = self._go_to(second)
            if (now := _trainer(run.moments[-1])) != trainer:
                shown = ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in trips.items())
                print(f"{second:4.0f} s: with {now}; round trips in ms: {shown}", flush=True)
                trainer = now
            await asyncio.to_thread(run.watch, 0.5)
        return list(run.moments), began

    def _compared(self, profile: Path, moments: Sequence[Moment], began: float) -> str:
        """Describe the run, and what the simulator makes of the path."""
        lines = [f"with {one.trainer}: {one.steps_per_second:.1f} steps a second" for one in stays(moments)]
        sites = [replace(site, round_trip_seconds=None) for site in self._sites]
        foreseen = simulated(profile, sites, self._path)
        done = moments[-1].steps - moments[0].steps
        seconds = moments[-1].seconds - began
        lines.append(
            f"{done} steps in {seconds:.0f} s; the simulator has {foreseen['best']:.0f} with the policy best, and "
            f"{foreseen['sticky']:.0f} where a trainer is kept until it is out of reach"
        )
        return "\n".join(lines)


def round_trips(sites: Sequence[Site], path: WorldPath, second: float) -> Mapping[str, float]:
    """Return the round trips to all sites from where the path is at a second."""
    places = np.array([(site.latitude, site.longitude) for site in sites]).T
    metres = metres_between(*path.at(np.array([second])), *places)[0]
    return {
        site.name: NEAR_SECONDS + (FAR_SECONDS - NEAR_SECONDS) * float(each) / site.radius_metres
        for site, each in zip(sites, metres, strict=True)
    }


def simulated(profile: Path, sites: Sequence[Site], path: WorldPath) -> Mapping[str, float]:
    """Return the steps of two policies on the path."""
    space = SearchSpace((32,), staleness=0, allow_edge_only=True)
    pairs = best_pairs(Question(load_profile(profile), space))
    world = World(pairs, sites, path, Backbone(BITS_PER_SECOND, BITS_PER_SECOND))
    return {run.policy: run.steps for run in simulate_moves(world, ("best", "sticky"))}


def stays(moments: Sequence[Moment]) -> list[_Stay]:
    """Return the stays with one trainer after the other."""
    found: list[_Stay] = []
    for moment in moments:
        trainer = _trainer(moment)
        if found and found[-1].trainer == trainer:
            found[-1] = replace(found[-1], end=moment)
        else:
            found.append(_Stay(trainer, moment, moment))
    return found


def _trainer(moment: Moment) -> str:
    workers = moment.layout.workers
    return workers[-1] if len(workers) > 1 else "the device alone"


if __name__ == "__main__":
    sys.exit(main())
