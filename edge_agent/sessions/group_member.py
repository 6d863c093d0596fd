"""This device as a member of a group: the group says how many steps it does, where it begins, and with which weights."""

from collections.abc import Sequence
from functools import partial

import structlog

from edge_agent.experiment.building import Experiment
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.bounds import is_step
from shared.concurrency.tasks import gathered
from shared.errors import ProtocolError, UnreachableError
from shared.placement import Placement
from shared.runtime.placed_worker import PlacedWorker
from shared.training.held_state import changing_blocks
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)


def deciding_trainer(experiment: Experiment, placement: Placement) -> str:
    """Name the trainer that decides for all trainers of the group: it owns the first block that training changes."""
    return placement.owner(changing_blocks(experiment.chain)[0])


def adopt_length(experiment: Experiment, worker: str, opened: pb.OpenSessionResponse) -> None:
    """Do as many steps as the group does. Raises ProtocolError for a trainer without groups."""
    assert experiment.config.member is not None, "a member asks"
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
    step = await session.retry.run(lambda: _begun_at_all(session))
    await session.collect()
    await device.go_back(session.state.plan, step)
    return step


async def leave_after(session: OpenSession, last_step: int) -> None:
    """Tell all trainers the last step of this device, of which it has given nothing. Raises IsthmusError.

    The deciding trainer hears it first: should the group go back, that one says who goes on.
    """
    decider, others = _trainers(session)
    await session.retry.run(lambda: decider.leave_group(last_step))
    await gathered(*(session.retry.run(partial(trainer.leave_group, last_step)) for trainer in others))


def _trainers(session: OpenSession) -> tuple[TrainerWorker, list[TrainerWorker]]:
    """Return the trainer that decides, and the others that have a part of the group."""
    decider = session.members[deciding_trainer(session.experiment, session.placement)]
    return decider, [trainer for trainer in session.members.holders(session.placement) if trainer is not decider]


async def _begun_at_all(session: OpenSession) -> int:
    """Begin at all trainers, and join before that where any of them says so; returns the step."""
    decider, others = _trainers(session)
    for _ in range(2):
        decided, answers = await _asked_at_all(decider, others)
        joining = [answer.step for answer in (decided, *answers) if answer.joins]
        if not joining:
            return decided.step
        first_step = max(joining)
        _log.info("joining the group", step=first_step)
        await gathered(*(trainer.join_group(decided.life.number, first_step) for trainer in (decider, *others)))
    raise UnreachableError(f"the group of this device has gone back, or on without it, since step {first_step}")


async def _asked_at_all(
    decider: TrainerWorker, others: Sequence[TrainerWorker]
) -> tuple[pb.RestoreWorkerResponse, list[pb.RestoreWorkerResponse]]:
    """Carry to the deciding trainer where the group is at the others, and to them what it decides; return all answers."""
    reminded = await gathered(*(trainer.remind() for trainer in others))
    positions = [answer.group for answer in reminded]
    decided = await decider.begin_in_group(pb.Beginning(group=pb.GroupBeginning(others=positions)))
    carried = pb.Beginning(step=decided.step, group=pb.GroupBeginning(life=decided.life))
    return decided, await gathered(*(trainer.begin_in_group(carried) for trainer in others))
