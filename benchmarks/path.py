"""A device on a path among three trainers, for real: `python -m benchmarks.path [--json PATH] [--repeats N] [--slower X]`.

The agent and the trainers of `make demo-move` in network namespaces. The links have 100 Mbit/s, and round trips that follow the
distance; blocks sleep for as long as they would compute, eight times as long as in the demo. The steps of quicker blocks
are foretold less well. The goal is as many steps as the simulator has, within 15 %.

Then the device stands still, and runs alternate that probe their candidates and that do not. Those that do probe ten times as
often as usual, so the goal of 2 % of the steps is one of 20 % here.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import monotonic

from benchmarks.net import Mesh, meshed_namespaces
from benchmarks.networks import PACE
from benchmarks.rivals.moving import Site, load_path, load_sites
from benchmarks.rivals.moving.paths import Path as WorldPath
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.live import LiveRun, Moment
from benchmarks.support.machine import machine
from benchmarks.support.often_probed import OFTENER
from benchmarks.support.processes import trainer_process
from benchmarks.support.report import write_json
from deploy.demo.demo_move import (
    BITS_PER_SECOND,
    CHOICE,
    COMMON,
    DEVICE_PACE,
    FASTER,
    TRAINER_PACE,
    round_trips,
    simulated,
    stays,
)
from edge_agent.demo.processes import FILES
from shared.errors import IsthmusError
from shared.placement import AGENT

WITHIN, MOST_SHARE = 0.15, 0.02
PROBED_SECONDS, SETTLED_SECONDS = 60.0, 5.0
"""Time of a run that is compared, and before it that of its beginning."""
SLOWER = 8.0
"""Ratio of the times of blocks to those of the demo: a step takes about a sixth of a second."""
PROBED = (*CHOICE, "choice.probe_bytes_per_minute=100000000")
UNPROBED = (*CHOICE, 'choice.policy="fixed"')


@dataclass(frozen=True)
class Travelled:
    """One run on the path."""

    steps: int
    simulated: float
    trainers: Sequence[str]
    """Trainers that it was with, in order."""

    @property
    def behind(self) -> float:
        """Return the steps of the simulator over those done, less 1."""
        return self.simulated / self.steps - 1


@dataclass(frozen=True)
class Probed:
    """Two runs after each other where the device stands, with probes and without."""

    steps_with: int
    steps_without: int
    layouts: Sequence[str]
    """Layouts of both: where they differ, they do not compare."""

    @property
    def share(self) -> float:
        """Return the part of the steps that usual probes cost."""
        return (1 - self.steps_with / self.steps_without) / OFTENER


class World:
    """The machines, and the device's place."""

    def __init__(self, mesh: Mesh, scratch: Path, sites: Sequence[Site], path: WorldPath, slower: float) -> None:
        """scratch: a folder for files that end with it. slower: the ratio of the times of blocks to those of the demo."""
        self.sites, self.path = sites, path
        self.profile = scratch / "profile.json"
        self._mesh, self._scratch = mesh, scratch
        self._set_pace(AGENT, slower * DEVICE_PACE)
        for site in sites:
            self._set_pace(site.name, slower * TRAINER_PACE * site.cloud_factor)
            mesh.shape(BITS_PER_SECOND, (AGENT, site.name))

    def _set_pace(self, device: str, pace: float) -> None:
        (self._scratch / f"{device}.pace").write_text(str(pace))

    def wrapper(self, device: str) -> list[str]:
        """Return the command that runs others on a device."""
        return self._mesh.machines[device].command(["env", f"{PACE}={self._scratch / f'{device}.pace'}"])

    @contextmanager
    def trainers(self) -> Iterator[Mapping[str, str]]:
        """Run the trainers meanwhile; yields their addresses by name."""
        peers = ", ".join(f'"{self._mesh.machines[site.name].address}:*"' for site in self.sites)
        flags = ('models.allowed=["deploy.demo.slow_network"]', f"peers.allowed=[{peers}]", "checkpoints.location=none")
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(
                    trainer_process(
                        *flags,
                        "control.listen=none",
                        wrapper=self.wrapper(name),
                        listen=f"{self._mesh.machines[name].address}:0",
                    )
                )
                for name in (site.name for site in self.sites)
            }

    def measure_profile(self, address: str) -> None:
        """Have the agent profile its device and a trainer. Raises CalledProcessError."""
        flags = [f"--set={flag}" for flag in COMMON]
        command = [sys.executable, "-m", "edge_agent.main", "profile", *flags, f"--trainer={address}"]
        subprocess.run([*self.wrapper(AGENT), *command, f"--out={self.profile}", "--repeats=2"], check=True)

    def go_to(self, second: float) -> None:
        """Have all links as they are there."""
        for name, seconds in round_trips(self.sites, self.path, second).items():
            self._mesh.delay(seconds, (AGENT, name))

    def travel(self, run: LiveRun) -> Travelled:
        """Go along the path while a run trains."""
        first = run.steps(1)[-1]
        began = monotonic()
        while (second := monotonic() - began) < self.path.duration_seconds:
            self.go_to(second)
            moments = run.watch(0.5)
        done = [moment for moment in moments if moment.seconds <= began + self.path.duration_seconds]
        foreseen = simulated(self.profile, [replace(site, round_trip_seconds=None) for site in self.sites], self.path)
        return Travelled(done[-1].steps - first.steps, foreseen["best"], [stay.trainer for stay in stays(done)])


def flags_of(world: World, addresses: Mapping[str, str], more: Sequence[str]) -> list[str]:
    """Return the flags of an agent with all trainers."""
    named = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
    return [*COMMON, *more, f"trainers=[{named}]", f'engine.profile="{world.profile}"']


def probed(world: World, addresses: Mapping[str, str]) -> Probed:
    """Compare a run that probes with one that does not, where the path begins."""
    world.go_to(0.0)
    each = [
        _steps(LiveRun(flags_of(world, addresses, more), world.wrapper(AGENT), module))
        for more, module in ((PROBED, "benchmarks.support.often_probed"), (UNPROBED, "benchmarks.support.live"))
    ]
    return Probed(each[0][0], each[1][0], [layout for _, layout in each])


def _steps(run: LiveRun) -> tuple[int, str]:
    """Return the steps that a run does once it has settled, and its layout."""
    try:
        run.steps(1)
        begin = len(run.watch(SETTLED_SECONDS))
        moments: Sequence[Moment] = run.watch(PROBED_SECONDS)
    finally:
        run.stop()
    return len(moments) - begin, " ".join(map(str, {moment.layout: 0 for moment in moments[begin:]}))


def main() -> None:
    """Travel, compare, print, and write the figures if asked to."""
    parser = benchmark_parser("path", __doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind")
    parser.add_argument(
        "--slower", type=float, default=SLOWER, help="times of blocks over the demo's (default: %(default)g)"
    )
    arguments = parser.parse_args()
    sites, path = load_sites(FILES / "sites.csv"), load_path(FILES / "path.csv")
    path = replace(path, seconds=path.seconds / FASTER)
    names = [site.name for site in sites]
    trips = {(AGENT, name): seconds for name, seconds in round_trips(sites, path, 0.0).items()}
    travelled, compared = list[Travelled](), list[Probed]()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            meshed_namespaces("path", (AGENT, *names), trips) as mesh,
        ):
            world = World(mesh, Path(folder), sites, path, arguments.slower)
            with world.trainers() as addresses:
                world.measure_profile(addresses[names[0]])
                for _ in range(arguments.repeats):
                    world.go_to(0.0)
                    run = LiveRun(flags_of(world, addresses, CHOICE), world.wrapper(AGENT))
                    try:
                        travelled.append(world.travel(run))
                    finally:
                        run.stop()
                    print(travelled[-1], file=sys.stderr, flush=True)
                    compared.append(probed(world, addresses))
                    print(compared[-1], file=sys.stderr, flush=True)
    except IsthmusError as failure:
        sys.exit(str(failure))
    print(machine())
    for one in travelled:
        print(
            f"path: {one.steps} steps with {', '.join(one.trainers)}; the simulator has {one.simulated:.0f}, "
            f"{one.behind:.1%} more; goal {WITHIN:.0%}"
        )
    for each in compared:
        print(
            f"probes, {OFTENER:.0f} times as often: {each.steps_with} steps, {each.steps_without} without; usual ones cost "
            f"{each.share:.2%}; goal {MOST_SHARE:.0%}"
        )
    print(
        f"median: the simulator has {median(one.behind for one in travelled):.1%} more, probes cost "
        f"{median(each.share for each in compared):.2%}"
    )
    write_json(arguments.json, "path", travelled=travelled, probed=compared)


if __name__ == "__main__":
    main()
