"""Runs that are stopped, and go on under a configuration that no longer permits the placement of their checkpoint."""

import json
from contextlib import asynccontextmanager

import pytest

from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import ConfigError, DataError, StoppedError
from shared.placement import parse_range
from tests.support.experiments import flags
from tests.support.placement_kinds import BATCH_SIZE, INVERTED, RANGES, flags_of, flags_of_document, running_trainers
from tests.support.plain import assert_same_bits
from tests.support.running import Listening, edge_config, place
from tests.support.stand_ins.recording import recorded

PLACED_AT, STEPS = 2, 20
LENGTH = [f"data.batch_size={BATCH_SIZE}", f"training.max_steps={STEPS}"]
DIGITS = [*flags("mlp", "adam"), *LENGTH]
AUTOENCODER = [
    *DIGITS,
    "model.kwargs={depth=4, outputs=64}",
    'data.train={factory="tests.support.samples:Itself"}',
    "training.loss=mse",
]
PERMITTED = 'privacy.inputs_to=["near"]'
CROSSING = {f"/isthmus.v1.TrainerService/{call}" for call in ("Link", "RestoreWorker", "UploadBlock")}
pytestmark = pytest.mark.usefixtures("one_thread")


def document(kind, **keys):
    ranges = RANGES[kind]
    tiles = [
        {"worker": worker, "blocks": list(parse_range(text).bounds(4))}
        for worker, texts in ranges.items()
        for text in texts
    ]
    return {"schema": "isthmus.placement/v1", "workers": ["edge", "near"], "tiles": tiles, **keys}


class StoppingUnder(Listening):
    """Has a run go to another placement, and stops it there."""

    def __init__(self, kind, shutdown):
        super().__init__(progressed=self.go_on, session_opened=self.open)
        self.kind, self.shutdown, self.deployer, self.placed = kind, shutdown, None, False

    def open(self, deployer):
        self.deployer = deployer

    def go_on(self, progress):
        if progress.steps == PLACED_AT and not self.placed:
            self.placed = True
            place(self.deployer, document(self.kind))
        if progress.deployment.version and not self.shutdown.requested:
            self.shutdown.drain()


@asynccontextmanager
async def heard_trainer(tmp_path):
    """The address of the trainer that is near, and an ear before it."""
    async with running_trainers(tmp_path) as servers, recorded(servers["near"].address) as (address, ear):
        yield {"near": address}, ear


async def stopped_under(kind, config):
    shutdown = Shutdown()
    with pytest.raises(StoppedError, match="goes on"):
        await run_training(config, StoppingUnder(kind, shutdown), shutdown=shutdown)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("experiment", "begun", "kind", "error", "sentence"),
    [
        (
            DIGITS,
            "two workers",
            INVERTED,
            ConfigError,
            "raw samples would go from 'edge' to 'near'; leave the first block where the samples are, or permit it by "
            "privacy.inputs_to",
        ),
        (
            AUTOENCODER,
            "labels stay",
            "two workers",
            DataError,
            "data.train: the labels are the inputs themselves, so raw samples would go to the trainer; if it may see them, "
            'set privacy.inputs_to to ["near"]',
        ),
    ],
    ids=["samples", "labels that are samples"],
)
async def test_what_may_not_leave_any_more_does_not_when_a_run_goes_on(
    experiment, begun, kind, error, sentence, tmp_path
):
    async with heard_trainer(tmp_path) as (addresses, ear):
        kept = f"checkpoints.location={tmp_path / 'edge'}"
        withdrawn = [*experiment, *flags_of(begun, addresses, tmp_path), kept]
        permitted = edge_config(*withdrawn, PERMITTED)
        await stopped_under(kind, permitted)
        ear.messages.clear()
        with pytest.raises(error, match="cannot go on under the placement of its checkpoint") as refused:
            await run_training(edge_config(*withdrawn), resume=Resume())
        assert sentence in str(refused.value)
        assert ear.messages, "the trainers were asked what they have"
        assert not CROSSING.intersection(ear.messages)
        result = await run_training(permitted, resume=Resume())
        undisturbed = await run_training(edge_config(*withdrawn))
    assert_same_bits(undisturbed.module.state_dict(), result.module.state_dict())


async def test_labels_that_are_to_stay_from_now_on_do_not_leave_when_a_run_goes_on(tmp_path):
    async with heard_trainer(tmp_path) as (addresses, ear):
        chosen = flags_of_document(document("two workers"), addresses, tmp_path)
        config = edge_config(*DIGITS, *chosen, f"checkpoints.location={tmp_path / 'edge'}")
        shutdown = Shutdown()
        stopping = Listening(lambda progress: shutdown.drain() if progress.steps == PLACED_AT else None)
        with pytest.raises(StoppedError, match="goes on"):
            await run_training(config, stopping, shutdown=shutdown)
        (tmp_path / "placement.json").write_text(json.dumps(document("labels stay", labels="edge")))
        ear.messages.clear()
        with pytest.raises(ConfigError, match=r"placement of its checkpoint: .*labels would go from 'edge' to 'near'"):
            await run_training(config, resume=Resume())
        assert not CROSSING.intersection(ear.messages)
