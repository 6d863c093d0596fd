"""Draws the head of the edge's dashboard, of a run of the demo that a Prometheus of this machine scrapes."""

import shutil
import socket
import tempfile
import time
import urllib.error
from contextlib import ExitStack
from pathlib import Path

from PIL import Image

from deploy.grafana import preview
from deploy.grafana.generate import FOLDER
from deploy.grafana.questions import Prometheus, Question, load
from deploy.grafana.server import SCRAPE_SECONDS, running_prometheus
from deploy.site.watched import running_agent

SHOWN_ROWS = 20
"""The run, and where the time of a step goes; of its grid."""
EPOCHS = 120
NEARLY_DONE = Question("nearly done", "isthmus_steps_total / isthmus_planned_steps > 0.9", instant=True)
COLOURS = 64
"""Few of them make a small file."""


def draw(picture: Path) -> None:
    """Train for a minute or so, and draw what Prometheus has seen once the run is nearly done."""
    if shutil.which("prometheus") is None:
        raise SystemExit("Prometheus is not installed; on Debian: apt-get install prometheus")
    began = time.time()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch = Path(folder)
        port, edge, trainer = _free_ports(3)
        targets = {"edges": f"127.0.0.1:{edge}", "trainers": f"127.0.0.1:{trainer}"}
        server = Prometheus(
            stack.enter_context(
                running_prometheus(scratch / "prometheus", port, {name: [at] for name, at in targets.items()})
            )
        )
        flags = (f"training.epochs={EPOCHS}", "deployment.staleness=1", "control.listen=none")
        metrics = tuple(f'metrics.listen="{address}"' for address in targets.values())
        agent = stack.enter_context(running_agent(scratch, *flags, metrics[0], trainer_flags=metrics[1:]))
        while not _answered(server, began):
            if agent.poll() is not None:
                raise SystemExit(f"the agent ended with code {agent.returncode} before the dashboard was drawn")
            time.sleep(SCRAPE_SECONDS)
        board = load(FOLDER / "edge.json")
        board["panels"] = [panel for panel in board["panels"] if panel["gridPos"]["y"] < SHOWN_ROWS]
        preview.draw(board, server, time.time() - began, SCRAPE_SECONDS, picture)
        agent.wait()  # a run that is done leaves no session behind
    with Image.open(picture) as drawn:
        fewer = drawn.convert("RGB").quantize(COLOURS)
    fewer.save(picture, optimize=True)


def _answered(server: Prometheus, began: float) -> bool:
    try:
        return bool(server.ask(NEARLY_DONE, began, time.time(), SCRAPE_SECONDS))
    except urllib.error.URLError:
        return False  # it does not listen yet


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
