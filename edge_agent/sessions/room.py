"""A check of the disks before a training: whether its results, checkpoints, the features that it keeps and batches from other
processes will find room.

The need is known before the first step, and a finished run without room for its results needs help.
"""

import shutil
from pathlib import Path

import structlog

from edge_agent.data.shared_memory import check_shared_memory, shared_memory_left
from edge_agent.experiment.experiment import Experiment
from edge_agent.sessions.stored_session import StoredSession
from shared.checkpoint import LocalFiles
from shared.control.formatting import size
from shared.errors import StorageError
from shared.execution.recalled import all_kept_bytes
from shared.model.features import specs_bytes
from shared.placement import AGENT, StepPlan, held_blocks
from shared.training.copied_features import most_written_bytes
from shared.training.optimizers import optimizer_bytes

_log = structlog.get_logger(__name__)
_OVERHEAD_BYTES = 256 * 1024
"""Bytes besides tensors: the summary, the record, manifests, names, folders."""


def check_room(experiment: Experiment, folder: LocalFiles | None, stored: StoredSession | None) -> None:
    """Raise StorageError if the results will have no room, and DataError if batches on their way from `data.workers` will have
    none. Warn if the checkpoints, the kept model or the features will have none.

    folder: the agent's folder of sessions. stored: the session that continues, whose files are there already.
    """
    config = experiment.config
    batch_bytes = specs_bytes(experiment.chain.features[0]) + specs_bytes(experiment.labels)
    check_shared_memory(config.data.workers, batch_bytes, shared_memory_left())
    results_bytes = _model_bytes(experiment) * (1 if config.training.keep_best is None else 2) + _OVERHEAD_BYTES
    output = config.output.directory
    if output is not None and (free_bytes := free_bytes_at(output)) < results_bytes:
        raise StorageError(
            f"output.directory: the disk of {output} has {size(free_bytes)} left, and the results will take "
            f"{size(results_bytes)}; make room, or choose another folder"
        )
    if folder is None:
        return
    checkpoints_bytes = session_bytes(experiment)
    if stored is not None:
        checkpoints_bytes -= stored.total_bytes()
    if output is not None and _disk(output) == _disk(folder.path):
        checkpoints_bytes += results_bytes
    if (free_bytes := free_bytes_at(folder.path)) < checkpoints_bytes:
        _log.warning(
            "the disk of the checkpoints may become full, and what is not kept is lost with this process",
            folder=str(folder.path),
            free=size(free_bytes),
            needed=size(checkpoints_bytes),
        )


def session_bytes(experiment: Experiment) -> int:
    """Count the bytes that a session takes on this device's disk at most: its checkpoints, its models and what is recalled."""
    config, recipe = experiment.config, experiment.recipe
    model_bytes = _model_bytes(experiment)
    checkpoints = config.checkpoints.keep + 1
    count = checkpoints * _part_bytes(experiment) + model_bytes + _OVERHEAD_BYTES
    if config.training.keep_best is not None:
        count += (checkpoints + 1) * model_bytes
    plan = StepPlan(experiment.placement, experiment.facts)
    kept_bytes = all_kept_bytes(experiment.chain, recipe, plan.placement, plan.model)
    if plan.sends_changes:
        count += most_written_bytes(kept_bytes, checkpoints)
    if plan.recalls_at(AGENT):
        count += kept_bytes
    return count


def _model_bytes(experiment: Experiment) -> int:
    return sum(tensor.nbytes for tensor in experiment.chain.module.state_dict().values())


def _part_bytes(experiment: Experiment) -> int:
    """Compute the size of the device's part of one checkpoint, with its first blocks."""
    blocks = [experiment.chain.blocks[index] for index in held_blocks(experiment.placement, AGENT)]
    parameters = [parameter for block in blocks for parameter in block.named_parameters().values()]
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    tensors = [*learning, *(buffer for block in blocks for buffer in block.named_buffers().values())]
    averages = learning if experiment.recipe.ema is not None else ()
    weights: int = sum(tensor.nbytes for tensor in (*tensors, *averages))
    return weights + optimizer_bytes(learning, experiment.recipe.optimizer_of_states)


def free_bytes_at(path: Path) -> int:
    """Return the free bytes on the disk of a path, which need not exist yet."""
    return shutil.disk_usage(_existing(path)).free


def _disk(path: Path) -> int:
    return _existing(path).stat().st_dev


def _existing(path: Path) -> Path:
    """Return the folder itself, or the nearest existing one above it."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
