"""This device as a member of a group: the group says how many steps it does, where it begins, and with which weights."""

from collections.abc import Sequence
from functools import partial

import structlog

from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.trainer_worker import TrainerWorker
from shared.bounds import is_step
from shared.concurrency.tasks import gathered
from shared.errors import ProtocolError, UnreachableError
from shared.placement import Placement
from shared.runtime.placed_worker import PlacedWorker
from shared.training import block_state
from shared.training.held_state import changing_blocks
from shared.wire.isthmus.v1 import trainer_pb2 as pb

_log = structlog.get_logger(__name__)
_SHOWN = 32
"""Ranks that a line of the log has at most."""


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


async def begin_in_group(session: OpenSession, device: PlacedWorker, *, has_trained: bool) -> int:
    """Begin at the step of the group, with its weights; returns the step. Nothing may be in flight.

    has_trained: this process has done steps of the group.

    A member has no state of its own, so one that comes back begins in the same way. Raises IsthmusError.
    """
    decided = await session.retry.run(lambda: _begun_at_all(session))
    step = decided.step
    session.stored.group_checkpoint_steps = max(1, decided.life.checkpoint_steps)
    if step < session.experiment.steps:
        if decided.awaited:
            _log.info("the group waits for members that are away", ranks=list(decided.awaited[:_SHOWN]))
        await session.collect()
    else:
        await _collect_result(session)
        if has_trained:
            _log.info("the group has ended, and this device has its result", steps=step)
        else:
            told = "this device comes after the last step of its group, and has the result of the others"
            _log.warning(told, steps=step)
    await device.go_back(session.state.plan, step)
    return step


async def _collect_result(session: OpenSession) -> None:
    """Bring home what the others have trained. Raises ProtocolError for trainers that cannot have it."""
    experiment, steps = session.experiment, session.experiment.steps
    for trainer in session.members.holders(session.placement):
        if (at := (await session.retry.run(trainer.remind)).group.step) < steps:
            raise ProtocolError(
                f"trainer {trainer.name!r} says that this device begins after the last of {steps} steps, and that its group is "
                f"at step {at}"
            )
    before = await session.threads.compute.run(_digests, experiment)
    await session.collect()
    if before == await session.threads.compute.run(_digests, experiment):
        raise ProtocolError(
            f"the group has done all of its {steps} steps, say its trainers, and its weights are those with which this device "
            "would begin: nothing was trained"
        )


def _digests(experiment: Experiment) -> list[int]:
    """Return the digests of the blocks that training changes, as they are on this device. Computes."""
    blocks = experiment.chain.blocks
    return [block_state.digest(blocks[index]) for index in changing_blocks(experiment.chain)]


async def leave_after(session: OpenSession, last_step: int, *, ends_group: bool = False) -> None:
    """Tell all trainers the last step of this device, of which it has given nothing. Raises IsthmusError.

    ends_group: it is the last one of all, and done. The deciding trainer hears it first: should the group go back, that one
    says who goes on, and for how long.
    """
    decider, others = _trainers(session)
    await session.retry.run(lambda: decider.leave_group(last_step, ends_group=ends_group))
    await gathered(
        *(session.retry.run(partial(trainer.leave_group, last_step, ends_group=ends_group)) for trainer in others)
    )


def _trainers(session: OpenSession) -> tuple[TrainerWorker, list[TrainerWorker]]:
    """Return the trainer that decides, and the others that have a part of the group."""
    decider = session.members[deciding_trainer(session.experiment, session.placement)]
    return decider, [trainer for trainer in session.members.holders(session.placement) if trainer is not decider]


async def _begun_at_all(session: OpenSession) -> pb.RestoreWorkerResponse:
    """Begin at all trainers, and join before that where any of them says so; returns what the one that decides says."""
    decider, others = _trainers(session)
    for _ in range(2):
        decided, answers = await _asked_at_all(decider, others)
        joining = [answer.step for answer in (decided, *answers) if answer.joins]
        if not joining:
            return decided
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
