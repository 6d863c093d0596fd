"""One run that is handed over, relayed, drained and has a trainer replaced: bit for bit as if nothing had happened, and with
late gradients as its recorded order says.
"""

import asyncio
import signal
from contextlib import ExitStack

import pytest

from edge_agent.replaying.replay import replay
from edge_agent.replaying.run_record import read_record
from edge_agent.training.choosers import Chooser
from edge_agent.training.events import CheckpointShared, HandedOver, Placed, Relayed, Replaced, RolledBack
from isthmus import run_training
from shared.placement import AGENT, held_blocks
from shared.training.step_log import check_steps
from tests.integration.moving.test_relays import Ways, cut
from tests.support.experiments import flags
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config, hand_over, trainer_process

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
STEPS, NAMES = 600, ("one", "two", "three", "four")
CHOSEN = [
    *flags("cnn", "adamw"),
    f"training.max_steps={STEPS}",
    "training.epochs=80",
    "training.evaluate_every_epochs=0",
]


class Story:
    """The events that befall a run, one after the other: each when the one before has come about, and some steps are done."""

    def __init__(self, processes, proxies):
        self._processes, self._proxies = processes, proxies
        self.holder, self.deployer, self.handed, self.relayed, self.replaced = "", None, [], [], []
        self._shared_by = ""
        self._begun_at = 0
        self._left = [
            lambda: hand_over(self.deployer, "two"),
            lambda: hand_over(self.deployer, "one"),
            lambda: hand_over(self.deployer, "two"),
            lambda: cut(self._proxies["two"]),
            lambda: self._processes[self.holder].send_signal(signal.SIGTERM),
            lambda: self._processes[self.holder].kill(),
        ]

    def note(self, event):
        match event:
            case Placed():
                self.holder = next((name for name in NAMES if held_blocks(event.placement, name)), AGENT)
            case HandedOver():
                self.handed.append(event.by)
            case Relayed() if event.through:
                self.relayed.append(event.through)
            case Replaced():
                self.replaced += event.trainers
            case CheckpointShared() if event.is_replicated:
                self._shared_by = next(name for name in NAMES if held_blocks(event.placement, name))
            case RolledBack():
                assert not self._left, "only a trainer that dies has others go back"

    def progressed(self, progress):
        came = len(self.handed) == min(6 - len(self._left), 5)
        if self._left and came and self._shared_by == self.holder and progress.steps >= self._begun_at + 25:
            self._begun_at, self._shared_by = progress.steps, ""
            act = self._left.pop(0)
            asyncio.get_running_loop().call_soon(act)


@pytest.mark.parametrize(
    "staleness", [pytest.param(0, marks=pytest.mark.full), 2, pytest.param(5, marks=pytest.mark.full)]
)
async def test_handovers_a_relay_a_drain_and_a_replacement_in_one_run_change_no_bit(staleness, tmp_path, monkeypatch):
    ways, proxies = Ways(monkeypatch), {}
    with ExitStack() as stack:
        settings = [PEERS_ALLOWED, "compute.threads=1", "compute.device=cpu", "server.stop_seconds=30"]
        each = {name: stack.enter_context(trainer_process(*settings)) for name in NAMES}
        story = Story({name: process for name, (process, _) in each.items()}, proxies)
        trainers = ", ".join(
            f'{{name="{name}", address="{address}", replace_after_seconds=1}}' for name, (_, address) in each.items()
        )
        config = edge_config(
            *CHOSEN,
            f"trainers=[{trainers}]",
            f"deployment.staleness={staleness}",
            f"output.directory={tmp_path / 'output'}",
            "output.record=true",
            "checkpoints.replicas=1",
            "checkpoints.every_steps=10",
            f"checkpoints.location={tmp_path / 'edge'}",
            f"checkpoints.step_log={tmp_path / 'steps'}",
        )
        kinds = (HandedOver, Placed, Relayed, Replaced, RolledBack, CheckpointShared)
        listening = Listening(
            story.progressed, lambda deployer: setattr(story, "deployer", deployer), dict.fromkeys(kinds, story.note)
        )
        async with ways.proxied(each["two"][1]) as proxies["two"]:
            result = await run_training(config, listening, lambda result: result.write(tmp_path / "output"))
    assert story.handed == [Chooser.OPERATOR] * 3 + [Chooser.RELAY, Chooser.DRAIN]
    assert [*story.relayed[0]] == ["two"]
    assert len(story.replaced) == 1
    (log,) = (tmp_path / "steps").glob("*-edge.steps")
    assert check_steps(log) == STEPS
    if staleness == 0:
        assert_same_bits(plain_state(edge_config(*CHOSEN)), result.module.state_dict())
    (record,) = (tmp_path / "output").glob("*.record.jsonl")
    assert replay(read_record(record), tmp_path / "output" / "model.safetensors") == STEPS
