"""The step log says that the run went back to a checkpoint once every worker has: not of one that a trainer cannot restore."""

import pytest

from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import run_training
from shared.errors import StoppedError
from shared.training.step_log import check_steps
from tests.support.commands import MLP
from tests.support.running import Listening, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def damage_newest(folder):
    """Damage the newest checkpoint in a folder; returns its step, and that of the one before."""
    parts = sorted(folder.rglob("checkpoint-*.safetensors"), key=lambda path: int(path.stem.split("-")[2]))
    assert len(parts) >= 2
    parts[-1].write_bytes(b"other bytes")
    return [int(path.stem.split("-")[2]) for path in (parts[-1], parts[-2])]


async def test_the_agent_tells_of_no_checkpoint_that_its_trainer_cannot_restore(tmp_path):
    stop, steps = Shutdown(), tmp_path / "steps"
    flags = [*MLP, "training.max_steps=40", "checkpoints.every_steps=5", f"checkpoints.location={tmp_path / 'edge'}"]
    kept = [f"checkpoints.location={tmp_path / 'trainer'}", f"checkpoints.step_log={steps / 'trainer'}"]
    async with running_trainer(*kept) as server:
        config = edge_config(*flags, f"checkpoints.step_log={steps / 'edge'}", f"trainer.address={server.address}")
        stops = Listening(lambda now: stop.drain() if now.steps == 20 else None)
        with pytest.raises(StoppedError):
            await run_training(config, stops, shutdown=stop)
        damaged, older = damage_newest(tmp_path / "trainer")
        await run_training(config, resume=Resume())
    for log in (*(steps / "edge").iterdir(), *(steps / "trainer").iterdir()):
        assert [line for line in log.read_text().splitlines() if line.startswith("back")] == [f"back {older}"]
        assert check_steps(log) == 40
    assert damaged > older
