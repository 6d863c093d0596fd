"""The real Prometheus, with our configuration and rules, beside a real run: it scrapes both sides, and every question of
every dashboard has an answer. What it looks like is drawn into run/dashboards."""

import asyncio
import json
import math
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager, suppress

import pytest

from deploy.grafana.generate import FOLDER
from deploy.grafana.preview import draw
from deploy.grafana.questions import Prometheus, Question, load, other_questions, panel_questions, panels
from deploy.grafana.server import SCRAPE_SECONDS, running_prometheus
from isthmus import run_training
from tests.conftest import ROOT
from tests.support.placement_kinds import flags_of, permitted, trainers_flag
from tests.support.running import Listening, agent_process, cut_at, edge_config, run_agent, trainer_process

ACCEPTING, GROUP = "server.accept_inputs=true", 'groups=[{name="line", size=1}]'
PATIENT_SCRAPES, PATIENT_STEPS = 120, 4000
"""A question without an answer fails after as many scrapes of each side and as many steps, however long they take."""
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
CHAIN = [
    "training.epochs=10000",
    "placement.edge=0:2",
    "placement.near=2:4",
    "placement.far=4:",
    "checkpoints.replicas=1",
    "checkpoints.every_seconds=5",
    'training.metrics=["top5"]',
    'data.on_error="skip"',
]
"""A second run, for what only a chain has: links between trainers, replicas, and stages held against their prediction.

It has metrics, too, and may skip samples.
"""
DIVIDED = [
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={depth=4, hidden=128}",
    'data.train={factory="tests.support.samples:FlatDigits"}',
    "training.epochs=10000",
    "training.evaluate_every_epochs=0",
    "data.batch_size=64",
    'training.precision="fp16"',
    "compute.threads=1",
]
"""A third run, for what only a divided batch has, and float16: exchanged blocks, and a scale of the loss."""
MEMBER = [
    *("training.epochs=10000", "training.evaluate_every_epochs=0", "compute.threads=1"),
    'group={name="line", rank=0, schedule="dynacomm"}',
    *('privacy.gradients_to=["trainer"]', 'privacy.inputs_to=["trainer"]'),
]
"""A fourth run, of the only member of a group, which makes its schedule again."""
AMONG_CANDIDATES = ["training.epochs=10000", "training.evaluate_every_epochs=0", "compute.threads=1"]
"""A fifth run, which chooses between two trainers."""

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")


def answered(server, question, since):
    """Tell whether the question has at least one number for an answer."""
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

    def __init__(self, url, goes_on):
        """goes_on: whether the run does."""
        self.url, self.since, self.server, self._goes_on = url, time.time(), Prometheus(url), goes_on

    def get(self, path):
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=30) as response:
            return json.load(response)["data"]

    def value(self, query):
        """The number that a query has for an answer now; 0 if it has none, or no answer comes yet."""
        try:
            found = self.get(f"query?{urllib.parse.urlencode({'query': query})}")["result"]
        except urllib.error.URLError:
            return 0.0
        return float(found[0]["value"][1]) if found else 0.0

    def seen(self):
        """Return the number of scrapes of each side, and the steps of the run, in all."""
        return self.value("min(count_over_time(up[1h]))"), self.value("max(isthmus_steps_total)")

    def wait_for(self, question):
        scrapes, steps = self.seen()
        while not answered(self.server, question, self.since):
            more = self.seen()
            patient = more[0] < scrapes + PATIENT_SCRAPES or more[1] < steps + PATIENT_STEPS
            assert patient, f"no answer to {question}"
            assert self._goes_on(), "the run has ended"
            time.sleep(SCRAPE_SECONDS / 2)


@contextmanager
def others(edge_metrics, trainer_metrics, folder):
    """A profiled chain, a divided batch, a member of a group and a run that chooses its trainer, on two trainers.

    Their metrics are at these addresses. folder: for profiles and a placement.
    """

    def profiled(flags, name):
        profile = folder / f"{name}.json"
        chosen = [f"--set={flag}" for flag in flags]
        done = run_agent("profile", *chosen, f"--out={profile}", "--repeats=2")
        assert done.returncode == 0, done.stderr
        return f"engine.profile={profile}"

    with ExitStack() as stack:
        addresses = {}
        for name, address in zip(("near", "far"), trainer_metrics, strict=True):
            flags = [
                f'metrics.listen="{address}"',
                "compute.threads=1",
                'peers.allowed=["127.0.0.1:*"]',
                ACCEPTING,
                GROUP,
            ]
            _, addresses[name] = stack.enter_context(trainer_process(*flags))
        divided = [*DIVIDED, *flags_of("samples divided", addresses, folder), *permitted("samples divided", "mlp")]
        member = [*MEMBER, f"trainer.address={addresses['near']}"]
        pair = profiled([*AMONG_CANDIDATES, trainers_flag(addresses, ["near"])], "pair")
        choosing = [*AMONG_CANDIDATES, trainers_flag(addresses, [*addresses]), pair]
        chain = [*CHAIN, trainers_flag(addresses, [*addresses]), "compute.threads=1"]
        runs = ([*chain, profiled(chain, "chain")], divided, member, choosing)
        for chosen, address in zip(runs, edge_metrics, strict=True):
            stack.enter_context(agent_process(*chosen, f'metrics.listen="{address}"'))
        yield


@pytest.fixture(scope="module")
def watched(tmp_path_factory, unused_tcp_port_factory):
    """A run on a thread of its own, which moves its cut twice, and never ends by itself, beside others."""
    trainers, edges = ([f"127.0.0.1:{unused_tcp_port_factory()}" for _ in range(count)] for count in (3, 5))
    port, targets = unused_tcp_port_factory(), {"trainers": trainers, "edges": edges}
    with ExitStack() as stack:
        flags = [f'metrics.listen="{trainers[0]}"', "compute.threads=1"]
        _, address = stack.enter_context(trainer_process(*flags))
        url = stack.enter_context(running_prometheus(tmp_path_factory.mktemp("prometheus") / "etc", port, targets))
        stack.enter_context(others(edges[1:], trainers[1:], tmp_path_factory.mktemp("others")))
        flags = [*RUN, f'metrics.listen="{edges[0]}"', f"trainer.address={address}"]
        deployers, stoppers = [], []

        def begin(deployer):
            deployers.append(deployer)
            watched.wait_for(Question("begin", f'isthmus_attached{{instance="{edges[0]}"}} == 0', instant=True))

        def move(progress):
            if progress.steps in MOVES:
                cut_at(deployers[0], MOVES[progress.steps])

        async def run():
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            stoppers.append(lambda: loop.call_soon_threadsafe(task.cancel))
            with suppress(asyncio.CancelledError):
                await run_training(edge_config(*flags), Listening(move, begin))

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        watched = Watched(url, lambda: thread.ident is None or thread.is_alive())
        # Prometheus has to see either side without a session before it has one: what was always there did not come.
        watched.wait_for(Question("begin", f'isthmus_sessions{{instance="{trainers[0]}"}} == 0', instant=True))
        thread.start()
        try:
            yield watched
        finally:
            stoppers[0]()
            thread.join()


@pytest.mark.parametrize("question", list(all_questions()))
def test_every_question_of_every_dashboard_has_an_answer(watched, question):
    watched.wait_for(question)


def test_both_sides_are_scraped(watched):
    watched.wait_for(Question("all", "min(up) == 1", instant=True))
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
