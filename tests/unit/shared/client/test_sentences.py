"""Sentences about a trainer that does not answer: they name only settings that the worker has."""

import pytest

from cloud_trainer.config import PeersConfig
from cloud_trainer.peers.dialer import PeerDialer
from shared.client.config import TrainerAddressConfig
from shared.client.connection import TrainerConnection
from shared.client.credentials import PLAIN
from shared.client.idle_timeout import unanswered
from shared.config import LinkConfig
from shared.errors import UnreachableError
from tests.support.running import held_port


def test_a_silence_names_the_setting_where_there_is_one():
    said = "the trainer at gpu:1 did not answer for 3 s"
    assert str(unanswered("gpu:1", "Link", 3.0, "trainer.call_timeout_seconds")) == (
        f"{said} (Link, trainer.call_timeout_seconds)"
    )
    assert str(unanswered("gpu:1", "Link", 3.0, "")) == f"{said} (Link)"


@pytest.mark.parametrize("by_trainer", [False, True])
async def test_a_trainer_that_cannot_be_connected_is_said_with_the_settings_of_an_agent_alone(by_trainer):
    dialer = PeerDialer(PeersConfig(), LinkConfig(), insecure=True)
    with held_port() as port:  # no process listens there
        trainer = TrainerAddressConfig(address=f"127.0.0.1:{port}", connect_timeout_seconds=0.2)
        access = dialer.access if by_trainer else PLAIN
        connection = TrainerConnection(trainer, LinkConfig(), lambda _code: None, access)
        with pytest.raises(UnreachableError, match=r"no trainer answered at 127\.0\.0\.1") as raised:
            await connection.open()
    assert ("trainer.address" in str(raised.value)) is not by_trainer
