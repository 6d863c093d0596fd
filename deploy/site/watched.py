"""Draws what shows a run while and after it trains: `edge-agent top`, and the time line. Both are of one run of the demo."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.site import terminal
from edge_agent.demo import processes

AGENT = processes.script("edge-agent")
WIDTH = 84


@contextmanager
def running_agent(
    scratch: Path, *own_flags: str, trainer_flags: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """The demo's agent, which trains with a trainer of its own and is stopped on the way out."""
    with processes.running_trainer(scratch / "address", "control.listen=none", *trainer_flags) as (_, address):
        given = (f"trainer.address={address}", f"output.directory={scratch / 'output'}", *own_flags)
        flags = [f"--config={processes.FILES / 'edge.toml'}", *(f"--set={flag}" for flag in given)]
        agent = subprocess.Popen([str(AGENT), "run", *flags], stdout=subprocess.DEVNULL)
        try:
            yield agent
        finally:
            agent.terminate()
            agent.wait()


def draw(top: Path, timeline: Path) -> None:
    """Train with K = 1, watch it, and draw both."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        socket, trace = scratch / "control.sock", scratch / "trace.json"
        flags = ("deployment.staleness=1", f"control.listen=unix:{socket}", f"output.trace={trace}")
        with running_agent(scratch, *flags) as agent:
            while not socket.exists():
                if agent.poll() is not None:
                    raise SystemExit(f"the agent ended with code {agent.returncode} before anybody could watch it")
                time.sleep(0.05)
            shown = terminal.printed_by([AGENT, "top", f"--control=unix:{socket}"], WIDTH)
            agent.wait()
        training = [frame for frame in terminal.frames(shown) if "training" in frame]
        terminal.draw("edge-agent top", training[2 * len(training) // 3], top, WIDTH)
        subprocess.run([AGENT, "timeline", trace, f"--png={timeline}", "--steps=8"], check=True)
