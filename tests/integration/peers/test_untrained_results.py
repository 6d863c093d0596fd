"""A trainer that says that its group is done, and has nothing: its member ends with a sentence and no result."""

import pytest

from isthmus import run_training
from shared.errors import ExitCode, ProtocolError
from tests.support.group_flags import STEPS, group_of, member_flags
from tests.support.peers.lying_trainer import lying_trainer, saying
from tests.support.running import edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def at_the_end(answer):
    answer.step = STEPS


def all_done(answer):
    answer.group.step = STEPS


@pytest.mark.parametrize(
    ("lies", "sentence"),
    [
        ({"RestoreWorker": at_the_end}, f"begins after the last of {STEPS} steps, and that its group is at step 0"),
        ({"RestoreWorker": at_the_end, "GetSession": all_done}, "would begin: nothing was trained"),
    ],
)
async def test_a_group_that_is_said_to_be_done_and_is_not_gives_no_result(lies, sentence):
    async with running_trainer(*group_of(2)) as server, lying_trainer(server.address) as (trainer, address):

        def lie(method, data):
            return saying(method, lies[method])(method, data) if method in lies else data

        trainer.of_answers = lie
        with pytest.raises(ProtocolError, match=sentence) as failure:
            await run_training(edge_config(*member_flags(0), f"trainer.address={address}"))
        assert failure.value.exit_code is ExitCode.PROTOCOL
