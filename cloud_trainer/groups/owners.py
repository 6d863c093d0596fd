"""The trainers that have a part of a group, by the placement of one member's session."""

from cloud_trainer.groups.lives import Position
from cloud_trainer.sessions.session import Session
from shared.errors import ProtocolError
from shared.training.held_state import changing_blocks


def decides(session: Session) -> bool:
    """Tell whether this trainer decides when a life of the session's group begins: it owns the first block that changes."""
    return _owners(session)[0] == session.worker.name


def of_all_others(session: Session, positions: list[Position]) -> list[Position]:
    """Refuse positions of more or fewer trainers than have a part of the group beside this one. Raises ProtocolError."""
    if len(positions) != (others := len(_owners(session)) - 1):
        raise ProtocolError(f"a member tells the positions of {len(positions)} other trainers; the group has {others}")
    return positions


def _owners(session: Session) -> list[str]:
    """List the trainers that have a part of a session's group, in the order of their blocks."""
    placement = session.worker.placement
    return list(dict.fromkeys(placement.owner(block) for block in changing_blocks(session.judge.chain)))
