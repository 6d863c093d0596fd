"""The result of a training run: its figures, and the model with the weights of both sides."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import structlog
from torch import nn

from edge_agent.training.divergence import first_not_finite
from edge_agent.training.statistics import Statistics
from shared.files.whole_file import write_whole
from shared.model.chain import Chain
from shared.training.block_state import savable

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """One block and the worker that had its weights at the end."""

    name: str
    worker: str
    parameters: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run. accuracy and test_loss are those of the last evaluation, None where there was none.

    diverged_at_step: the step whose loss was no finite number, where that ended the run; `steps` is then the step that the
    weights are of.
    """

    session: str
    accuracy: float | None
    test_loss: float | None
    train_loss: float
    seconds: float
    steps: int
    samples_per_second: float
    bytes_up: int
    bytes_down: int
    edge_blocks: int
    blocks: list[BlockPlace]
    diverged_at_step: int | None = None

    @classmethod
    def of(
        cls,
        statistics: Statistics,
        seconds: float,
        chain: Chain,
        owners: Sequence[str],
        diverged_at_step: int | None = None,
    ) -> "Summary":
        """The figures of a run that took so many seconds and ended with each block at its owner, a worker by its name."""
        return cls(
            session=statistics.session,
            accuracy=statistics.accuracy,
            test_loss=statistics.test_loss,
            train_loss=statistics.loss,
            seconds=round(seconds, 3),
            steps=statistics.steps,
            samples_per_second=round(statistics.samples / seconds, 1),
            bytes_up=statistics.bytes_up,
            bytes_down=statistics.bytes_down,
            edge_blocks=statistics.edge_blocks,
            blocks=[
                BlockPlace(
                    block.name,
                    owners[block.index],
                    sum(parameter.numel() for parameter in block.named_parameters().values()),
                )
                for block in chain.blocks
            ],
            diverged_at_step=diverged_at_step,
        )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run: the figures, and the user's own module with the trained weights of both sides in it."""

    summary: Summary
    module: nn.Module

    def write(self, directory: Path) -> Path:
        """Write `summary.json` and `model.safetensors` (state-dict keys are the module's own); returns the former's path.

        Each is there whole or as it was before. Weights that are no finite numbers replace no model that is there, which a
        warning says. Raises StorageError.
        """
        model, summary = directory / "model.safetensors", directory / "summary.json"
        if (ruined := first_not_finite(self.module)) is None:
            weights = savable(self.module.state_dict())
            write_whole(model, lambda path: safetensors.torch.save_file(weights, path))
        else:
            _log.warning("the model is not written", reason=f"{ruined} holds values that are no finite numbers")
        text = json.dumps(_as_json(asdict(self.summary)), indent=2, allow_nan=False) + "\n"
        write_whole(summary, lambda path: path.write_text(text))
        return summary


def _as_json(value: Any) -> Any:
    """`value` without what JSON has no number for: NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
