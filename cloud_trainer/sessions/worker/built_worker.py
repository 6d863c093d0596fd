"""The builder of a worker's part of a session: it checks every part of an agent's request before that part costs memory."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.opened_model import inputs_of, open_model
from cloud_trainer.sessions.worker.judging import ActivePlacement, PlacementJudge, read_placement
from shared.codec import FeedbackMode
from shared.errors import ConfigError
from shared.execution.blocks import Method
from shared.execution.recalled import Recalled, begin_recall
from shared.placement import StepPlan, held_blocks
from shared.registry import POLICIES
from shared.training.held_blocks import HeldBlocks
from shared.training.policies import policy_by_name
from shared.training.precision import check_precision
from shared.training.step_log import StepLog
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest
from shared.wire.isthmus.v1.trainer_pb2 import Placement as PlacementMessage


class BuiltWorker(NamedTuple):
    """The objects with which a worker begins."""

    active: ActivePlacement
    held: HeldBlocks
    method: Method
    judge: PlacementJudge
    step_log: StepLog | None
    begin_recall: Callable[[StepPlan], Recalled] | None
    """See `WorkerSetup`."""


def build_worker(
    request: OpenSessionRequest,
    placement: PlacementMessage,
    session_id: str,
    allowed: Sequence[str],
    limits: Limits,
    device: torch.device,
    step_log_folder: Path | None = None,
    recall_folder: Path | None = None,
) -> BuiltWorker:
    """Build a worker's part under a placement, for a session that was opened with `request`.

    device: the one on which its blocks compute. step_log_folder: folder for the log of every update; None for no log.
    recall_folder: folder for the features that the session may keep; None where it has no folder on this machine.
    Raises ModelError, ConfigError, ProtocolError or StatusError with the sentence that the agent's user will read, and
    StorageError where the log cannot be opened.
    """
    if request.backward not in POLICIES:
        raise ConfigError(f"backward is {request.backward[:40]!r}; it must be one of {', '.join(POLICIES)}")
    if request.feedback not in list(FeedbackMode):
        raise ConfigError(f"feedback is {request.feedback[:40]!r}; it must be one of {', '.join(FeedbackMode)}")
    # An invalid placement, or one that takes too much, is refused before a model is built for it.
    batch_size = inputs_of(request.inputs, request.input_names, limits).batch_size
    wanted = read_placement(placement, len(request.block_names), batch_size)
    limits.check_staleness(wanted.staleness, wanted.codecs.values())
    chain, recipe, head, metrics, memory, activation_bytes = open_model(request, allowed, limits)
    if recipe.recalls and recall_folder is None:
        raise ConfigError(
            "features are to be kept for this session (deployment.recall), and the trainer keeps sessions in no folder of its "
            "own machine (checkpoints.location)",
        )
    precision = recipe.precision_of(request.worker)
    check_precision(precision, device, request.worker)
    graph_bytes = activation_bytes if policy_by_name(request.backward).keeps_graphs else 0
    judge = PlacementJudge(request.worker, chain, recipe, limits, memory, graph_bytes, request.HasField("group"))
    active = judge.judged(wanted)
    held = HeldBlocks(chain, recipe, device, held_blocks(wanted, request.worker), precision)
    method = Method(head, request.backward, FeedbackMode(request.feedback), request.group.rank * batch_size, metrics)
    begins = None if recall_folder is None else partial(begin_recall, chain, recipe, recall_folder)
    step_log = None if step_log_folder is None else StepLog(step_log_folder, session_id, "trainer")
    return BuiltWorker(active, held, method, judge, step_log, begins)
