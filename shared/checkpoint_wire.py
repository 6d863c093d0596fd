"""Names of checkpoints as the wire has them. The one place that knows both."""

from shared.bounds import MOST_STEPS, MOST_TERMS, is_step, is_term
from shared.checkpoint import CheckpointName
from shared.errors import ProtocolError
from shared.wire.isthmus.v1 import trainer_pb2 as pb


def checkpoint_message(name: CheckpointName) -> pb.CheckpointName:
    """Return a name as a peer reads it."""
    return pb.CheckpointName(lineage=name.lineage, step=name.step)


def checkpoint_name(said: pb.CheckpointName) -> CheckpointName:
    """Read the checkpoint that a peer names. Raises ProtocolError for an impossible one."""
    name = CheckpointName(said.lineage, said.step)
    if not is_term(name.lineage) or not is_step(name.step):
        raise ProtocolError(
            f"there can be no checkpoint {name}: its term is {MOST_TERMS} at most, and its step {MOST_STEPS} at most"
        )
    return name
