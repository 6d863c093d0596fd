"""The real Prometheus, with our configuration and rules, beside a real run: it scrapes both sides, and every question of
every dashboard has an answer. What it looks like is drawn into run/dashboards."""

import asyncio
import json
import math
import shutil
import subprocess
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress

import pytest

from deploy.grafana.generate import FOLDER
from deploy.grafana.preview import draw
from deploy.grafana.questions import Prometheus, Question, load, other_questions, panel_questions, panels
from edge_agent import run_training
from tests.conftest import ROOT
from tests.support.running import Listening, edge_config, trainer_process

SCRAPE_SECONDS = 1
PATIENCE_SECONDS = 120
MOVES = {200: 3, 1200: 2}
DRAWN_STEPS = 1600
BOARDS = sorted(FOLDER.glob("*.json"))
RUN = [
    "training.epochs=10000",
    "deployment.cut=2",
    "deployment.staleness=3",
    'deployment.codec="uniform4"',
    'deployment.downlink_codec="uniform8"',
]

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")


@contextmanager
def prometheus(folder, port, targets):
    """Debian's Prometheus with our configuration, scraping every second."""
    shutil.copytree(ROOT / "deploy" / "prometheus", folder)
    config = folder / "prometheus.yml"
    faster = config.read_text().replace("scrape_interval: 5s", f"scrape_interval: {SCRAPE_SECONDS}s")
    config.write_text(faster.replace("evaluation_interval: 15s", f"evaluation_interval: {SCRAPE_SECONDS}s"))
    for name, address in targets.items():
        (folder / "targets" / f"{name}.yml").write_text(json.dumps([{"targets": [address]}]))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def answered(server, question, since):
    """Whether the question has at least one number for an answer."""
    try:
        answers = server.ask(question, since, time.time(), SCRAPE_SECONDS)
    except urllib.error.URLError:
        return False
    return any(not math.isnan(value) for answer in answers for _, value in answer.points)


def all_questions():
    for path in BOARDS:
        board = load(path)
        asked = [question for panel in panels(board) for question in panel_questions(panel, SCRAPE_SECONDS)]
        for question in [*asked, *other_questions(board, SCRAPE_SECONDS)]:
            yield pytest.param(question, id=f"{path.stem}-{question.where}")


class Watched:
    """A run that goes on, and the Prometheus that scrapes it."""

    def __init__(self, url):
        self.url, self.since, self.server = url, time.time(), Prometheus(url)

    def get(self, path):
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=30) as response:
            return json.load(response)["data"]

    def wait_for(self, question):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not answered(self.server, question, self.since):
            assert time.monotonic() < deadline, f"no answer to {question}"
            time.sleep(SCRAPE_SECONDS / 2)


@pytest.fixture(scope="module")
def watched(tmp_path_factory, unused_tcp_port_factory):
    """A run on a thread of its own, which moves its cut twice, and never ends by itself."""
    trainer_metrics, edge_metrics, port = (unused_tcp_port_factory() for _ in range(3))
    targets = {"trainers": f"127.0.0.1:{trainer_metrics}", "edges": f"127.0.0.1:{edge_metrics}"}
    with ExitStack() as stack:
        flags = [f'metrics.listen="127.0.0.1:{trainer_metrics}"', "compute.threads=1"]
        process, address = stack.enter_context(trainer_process(*flags))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        url = stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus") / "etc", port, targets))
        flags = [*RUN, f'metrics.listen="127.0.0.1:{edge_metrics}"', f"trainer.address={address}"]
        deployers, stoppers = [], []

        def begin(deployer):
            # Not before Prometheus has seen both sides without a session: what was always there did not come. The two are
            # first scraped at moments of their own, up to an interval apart.
            deployers.append(deployer)
            for without in ("isthmus_attached == 0", "isthmus_sessions == 0"):
                Watched(url).wait_for(Question("begin", without, instant=True))

        def move(progress):
            if progress.steps in MOVES:
                deployers[0].move(MOVES[progress.steps])

        async def run():
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            stoppers.append(lambda: loop.call_soon_threadsafe(task.cancel))
            with suppress(asyncio.CancelledError):
                await run_training(edge_config(*flags), Listening(move, begin))

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        try:
            yield Watched(url)
        finally:
            stoppers[0]()
            thread.join()


@pytest.mark.parametrize("question", list(all_questions()))
def test_every_question_of_every_dashboard_has_an_answer(watched, question):
    watched.wait_for(question)


def test_both_sides_are_scraped(watched):
    targets = watched.get("targets")["activeTargets"]
    assert {(target["labels"]["job"], target["health"]) for target in targets} == {
        ("isthmus-edge", "up"),
        ("isthmus-trainer", "up"),
    }


def test_all_rules_are_loaded_and_a_healthy_run_raises_no_alarm(watched):
    rules = [rule for group in watched.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert len(rules) == sum(
        line.strip().startswith(("- record:", "- alert:"))
        for path in (ROOT / "deploy" / "prometheus" / "rules").glob("*.yml")
        for line in path.read_text().splitlines()
    )
    assert [alert for alert in watched.get("alerts")["alerts"] if alert["state"] == "firing"] == []


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_the_dashboards_can_be_drawn(watched, path):
    watched.wait_for(Question("worth a look", f"isthmus_session_steps_total > {DRAWN_STEPS}", instant=True))
    folder = ROOT / "run" / "dashboards"
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{path.stem}.png"
    draw(load(path), watched.server, time.time() - watched.since, SCRAPE_SECONDS, picture)
    assert picture.stat().st_size > 50_000
