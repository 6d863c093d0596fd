"""The configured trainers as `TrainerListing` says them: members of the session and candidates."""

import asyncio
from collections.abc import Mapping

from edge_agent.sessions.joining import OTHERS_SECONDS
from edge_agent.training.training_run import TrainingRun
from shared.client.trainer import TrainerClient
from shared.concurrency.tasks import gathered
from shared.errors import BusyError, IsthmusError
from shared.placement import held_blocks, ranges_of
from shared.wire.isthmus.v1 import control_pb2 as pb


async def trainer_listings(run: TrainingRun, ranking: Mapping[str, float]) -> list[pb.TrainerListing]:
    """Ask every configured trainer whether it answers, and tell what it is to the session.

    ranking: seconds of a step with those among which the run chooses.
    """
    names = (trainer.name for trainer in run.session.experiment.config.all_trainers)
    return await gathered(*(_listing(run, name, ranking.get(name)) for name in names))


async def _listing(run: TrainingRun, name: str, seconds_per_step: float | None) -> pb.TrainerListing:
    members, role = run.session.members, pb.TRAINER_ROLE_MEMBER
    if name in members.candidates:
        role = pb.TRAINER_ROLE_CANDIDATE
    elif name in members.left_out:
        role = pb.TRAINER_ROLE_LEFT_OUT
    client = members.client(name)
    held = held_blocks(run.session.placement, name) if role == pb.TRAINER_ROLE_MEMBER else ()
    reason = await _absence(client)
    return pb.TrainerListing(
        name=name,
        address=client.address,
        role=role,
        blocks=map(str, ranges_of(held)),
        reachable=not reason,
        reason=reason,
        seconds_per_step=seconds_per_step,
    )


async def _absence(client: TrainerClient) -> str:
    """Return why a trainer does not answer; empty if it does."""
    try:
        async with asyncio.timeout(OTHERS_SECONDS):
            await client.check_serving()
    except BusyError:
        return ""
    except (IsthmusError, TimeoutError) as failure:
        return str(failure) or f"no answer came within {OTHERS_SECONDS:g} s"
    return ""
