"""This device as a member of a group: the group says how many steps it does, where it begins, and with which weights."""

from edge_agent.experiment.building import Experiment
from edge_agent.sessions.open_session import OpenSession
from shared.bounds import is_step
from shared.errors import ProtocolError
from shared.runtime.placed_worker import PlacedWorker
from shared.wire.isthmus.v1 import trainer_pb2 as pb


def adopt_length(experiment: Experiment, worker: str, opened: pb.OpenSessionResponse) -> None:
    """Do as many steps as the group does, where the experiment is in one. Raises ProtocolError for a trainer without groups."""
    if experiment.config.member is None:
        return
    if not opened.group_steps or not is_step(opened.group_steps):
        raise ProtocolError(
            f"trainer {worker!r} did not say how many steps group {experiment.config.member.name!r} does; it may be of a "
            "version without groups"
        )
    experiment.steps = opened.group_steps


async def begin_in_group(session: OpenSession, device: PlacedWorker) -> int:
    """Begin at the step of the group, with its weights; returns the step. Nothing may be in flight.

    A member has no state of its own, so one that comes back begins in the same way. Raises IsthmusError.
    """
    (trainer,) = session.members.values()
    step = (await session.retry.run(trainer.remind)).next_step
    await session.collect()
    await device.go_back(session.state.plan, step)
    return step
