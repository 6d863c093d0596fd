"""A trainer of a session, and what is said to it of the session as a whole."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError
from shared.placement import Placement, document_of
from shared.wire.isthmus.v1 import trainer_pb2 as pb

FAREWELL_SECONDS = 5.0
"""How long the end of a session may take. A trainer that does not hear of it frees the session by itself, later."""

Tickets = Mapping[str, Sequence[pb.Ticket]]
"""What the trainers let others dial them with, by the worker that listens."""


class Member(NamedTuple):
    """A trainer of the session, and the session by the id that it has given it."""

    client: TrainerClient
    session_id: str


async def abandon_at(member: Member) -> None:
    """End a session at one trainer, before it was joined, after a failure. An error of this call is dropped."""
    with suppress(IsthmusError, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await member.client.close_session(member.session_id, pb.Fence(), resumable=False)


def placement_message(placement: Placement) -> pb.Placement:
    """A placement as it travels."""
    return pb.Placement(version=placement.version, document_json=json.dumps(document_of(placement)))
