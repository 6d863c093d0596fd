"""The machines of a case: an agent's and trainers', each in a namespace of its own, slow in one way or the other."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.net import Mesh, meshed_namespaces, slowed_device
from benchmarks.networks import PACE, WORKER
from benchmarks.support.live import LiveRun
from benchmarks.support.processes import trainer_process
from shared.errors import IsthmusError
from shared.placement import AGENT

NAMES = (AGENT, "near", "far")
"""The workers of most cases, nearest first."""
PROCESS_FLAGS = ("compute.threads=1", "compute.device=cpu", "control.listen=none", "checkpoints.location=none")


class Machines:
    """A device and trainers that may dial each other."""

    def __init__(
        self, folder: Path, mesh: Mesh, wrappers: Mapping[str, Sequence[str]], addresses: Mapping[str, str]
    ) -> None:
        self.folder, self.mesh, self.wrappers = folder, mesh, wrappers
        self._addresses = addresses

    def set_pace(self, name: str, pace: float) -> None:
        """Have the sleeping blocks of a machine take so many times as long from now on."""
        _write_pace(self.folder, name, pace)

    def train(self, flags: Sequence[str], trainers: Sequence[str] | None = None) -> LiveRun:
        """Begin a run with trainers, all where None. flags: what it trains, and where."""
        chosen = self._addresses if trainers is None else {name: self._addresses[name] for name in trainers}
        fixed = [*_agent_flags(chosen), f"output.directory={self.folder / 'output'}"]
        return LiveRun([*fixed, *flags], self.wrappers[AGENT])

    def profile(self, flags: Sequence[str], out: Path, repeats: int) -> None:
        """Write the profile of three tiers to a file. flags: what is trained, and where. Raises IsthmusError where the agent
        that measures it fails."""
        settings = [f"--set={flag}" for flag in [*_agent_flags(self._addresses), *flags]]
        command = ["profile", "--tiers", f"--out={out}", f"--repeats={repeats}", *settings]
        done = subprocess.run(
            [*self.wrappers[AGENT], sys.executable, "-m", "edge_agent.main", *command], stdout=sys.stderr, check=False
        )
        if done.returncode != 0:
            raise IsthmusError(f"the profile ended with {done.returncode}")


def _agent_flags(addresses: Mapping[str, str]) -> list[str]:
    named = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
    return [*PROCESS_FLAGS, f"trainers=[{named}]"]


@contextmanager
def machines(folder: Path, names: Sequence[str], shares: Mapping[str, float] | None = None) -> Iterator[Machines]:
    """Make machines, the agent's first, and start the trainers. No link is shaped yet.

    shares: of a core, by name, where blocks compute; None where they sleep, at pace 1.
    """
    permitted = ("server.accept_inputs=true",) if shares is None else ()  # blocks that sleep hand on what they get
    with meshed_namespaces("chain", names) as mesh, started(folder, mesh, shares, permitted) as running:
        yield running


@contextmanager
def started(
    folder: Path, mesh: Mesh, shares: Mapping[str, float] | None = None, trainer_flags: Sequence[str] = ()
) -> Iterator[Machines]:
    """Start the trainers on machines, of which the first is the agent's. shares: see `machines`."""
    names = list(mesh.machines)
    with ExitStack() as stack:
        wrappers = {}
        for name in names:
            variables = f"{PACE}={_write_pace(folder, name, 1.0)}", f"{WORKER}={name}"
            inside = mesh.machines[name].command(["env", *variables])
            device = None if shares is None else stack.enter_context(slowed_device(shares[name]))
            wrappers[name] = inside if device is None else device.command(inside)
        allowed = ", ".join(f'"{mesh.machines[name].address}:*"' for name in names[1:])
        addresses = {
            name: stack.enter_context(
                trainer_process(
                    *PROCESS_FLAGS,
                    *trainer_flags,
                    f"peers.allowed=[{allowed}]",
                    wrapper=wrappers[name],
                    listen=f"{mesh.machines[name].address}:0",
                )
            )
            for name in names[1:]
        }
        yield Machines(folder, mesh, wrappers, addresses)


def _write_pace(folder: Path, name: str, pace: float) -> Path:
    """Whole or not at all, because sleepers read it all the time."""
    path, written = folder / f"{name}.pace", folder / f"{name}.pace.new"
    written.write_text(str(pace))
    written.replace(path)
    return path
