"""The judge of what an agent names in its calls: checkpoints, terms, and sessions at other trainers.

It refuses all that no session can have. A session judges the rest.
"""

from collections.abc import Sequence

from shared.bounds import MOST_STEPS, MOST_TERMS, MOST_WORKERS, is_session_id, is_step, is_term
from shared.checkpoint import CheckpointName
from shared.errors import ProtocolError
from shared.wire.isthmus.v1 import trainer_pb2 as pb


def checkpoint_name(said: pb.CheckpointName) -> CheckpointName:
    """Read the checkpoint that an agent names. Raises ProtocolError for an impossible one."""
    name = CheckpointName(said.lineage, said.step)
    if not is_term(name.lineage) or not is_step(name.step):
        raise ProtocolError(
            f"there can be no checkpoint {name}: its term is {MOST_TERMS} at most, and its step {MOST_STEPS} at most"
        )
    return name


def checked_beginning(said: pb.Beginning) -> pb.Beginning:
    """Return the point at which a worker is to begin again. Raises ProtocolError for an impossible one."""
    if not is_term(said.lineage) or not is_step(said.step):
        raise ProtocolError(
            f"no worker can begin again at step {said.step} of lineage {said.lineage}: a step is {MOST_STEPS} at most, and a "
            f"lineage {MOST_TERMS}"
        )
    return said


def check_others(session_ids: Sequence[str]) -> None:
    """Refuse names that no sessions at other trainers can have, and more than a run has. Raises ProtocolError."""
    if len(session_ids) > MOST_WORKERS:
        raise ProtocolError(f"{len(session_ids)} other sessions are named; a run has {MOST_WORKERS} at most")
    for session_id in session_ids:
        if not is_session_id(session_id):
            raise ProtocolError(f"{session_id[:40]!r} can be no session of another trainer")


def check_term(term: int) -> None:
    """Refuse a term that no session can reach. Raises ProtocolError."""
    if not is_term(term):
        raise ProtocolError(f"a session cannot be joined with term {term}; {MOST_TERMS} is the largest")
