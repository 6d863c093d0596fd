"""A trainer that means harm finds an agent that believes nothing: what it answers names no path, and is used within bounds."""

import asyncio

import pytest

from isthmus import run_training
from shared.errors import IsthmusError, ProtocolError
from shared.placement.window import MOST_UNREPORTED
from tests.support.peers.lying_trainer import lying_trainer, message_of, renamed, saying
from tests.support.peers.trainers import FLAGS
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import GIVE_UP_AT_ONCE, Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def kept_below(folder):
    """All that is there, with what is in it."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


async def trained_with(trainer, address, name, *flags, listener=None):
    """A run with a trainer that calls each session so, where its own name for it is known to nobody."""
    real = []

    def rename(answer):
        real.append(answer.session_id)
        trainer.of_requests = renamed({name: answer.session_id}, request=True)
        answer.session_id = name

    trainer.of_answers = saying("OpenSession", rename)
    config = edge_config(*FLAGS, f"trainer.address={address}", *flags)
    async with asyncio.timeout(200):
        return await run_training(config, listener or Listening())


@pytest.mark.parametrize("name", ["{}/precious", "../../precious", "..", ".", "", "F" * 32, "f" * 31, "f" * 32 + "\n"])
async def test_no_name_that_a_trainer_gives_a_session_leads_to_a_folder(tmp_path, name):
    precious = tmp_path / "precious"
    (precious / "letters").mkdir(parents=True)
    (precious / "letters" / "one").write_text("dear")
    before = kept_below(precious)
    async with running_trainer() as server, lying_trainer(server.address) as (trainer, address):
        with pytest.raises(ProtocolError) as ended:
            await trained_with(trainer, address, name.format(tmp_path), f"checkpoints.location={tmp_path / 'state'}")
    assert f"the trainer at {address} answers OpenSession with a session_id of " in str(ended.value)
    assert str(ended.value).isprintable()
    assert kept_below(precious) == before
    assert kept_below(tmp_path / "state") == {}


async def test_an_agent_keeps_a_session_under_a_name_of_its_own(tmp_path):
    names = []

    def look(_progress):
        names.extend(path.name for path in (tmp_path / "edge-agent").iterdir())

    async with running_trainer() as server, lying_trainer(server.address) as (trainer, address):
        kept = f"checkpoints.location={tmp_path}"
        result = await trained_with(trainer, address, "f" * 32, kept, listener=Listening(look))
    assert set(names) == {result.summary.session}
    assert result.summary.session != "f" * 32
    assert_same_bits(plain_state(edge_config(*FLAGS)), result.module.state_dict())


@pytest.mark.slow
async def test_a_trainer_that_reports_nothing_is_followed_for_a_while_and_no_further():
    begun = set()

    def hear(method, data):
        if method == "Link":
            begun.update(frame.step for frame in message_of(method, data, request=True).frames)
        return data

    steps = MOST_UNREPORTED + 500
    short = ["trainer.call_timeout_seconds=20", GIVE_UP_AT_ONCE, f"training.max_steps={steps}", "training.epochs=1000"]
    async with running_trainer() as server, lying_trainer(server.address) as (trainer, address):
        trainer.of_requests = hear
        trainer.of_answers = saying("Link", lambda answer: answer.ClearField("dones"))
        async with asyncio.timeout(200):
            with pytest.raises(IsthmusError) as ended:
                await run_training(edge_config(*FLAGS, f"trainer.address={address}", *short))
    assert str(ended.value).isprintable()
    assert max(begun, default=-1) == MOST_UNREPORTED - 1, str(ended.value)
