"""The result of a training run: its figures, and the model with the weights of both sides."""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import safetensors
import safetensors.torch
import structlog
from pydantic import JsonValue
from torch import Tensor, nn

from edge_agent.sessions.finished import ADAPTERS, BEST, EMA, MODEL, SUMMARY, folder_aside, is_result_of
from edge_agent.training.divergence import first_not_finite
from edge_agent.training.history import HistoryRow, write_history
from edge_agent.training.statistics import Statistics
from shared.errors import StorageError
from shared.files.whole_file import write_together
from shared.model.chain import Chain
from shared.model.snapshot import same_bits
from shared.placement import Placement, held_blocks
from shared.training.block_state import BlockTensors
from shared.training.state_file import savable

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """One block and the worker that owned its weights at the end."""

    name: str
    worker: str
    parameters: int
    held_by: list[str]
    """Workers that had its weights, to run it or as its owner; nearest first."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run. accuracy, test_loss and metrics are those of the last evaluation, None or empty if there was none.

    saved_accuracy, saved_test_loss, saved_metrics: those of the module as it is saved, where features crossed by a codec that
    loses something; None where the others are of it already.
    diverged_at_step: the step whose loss was no finite number, if that ended the run. `steps` is then the step of the weights.
    """

    session: str
    accuracy: float | None
    test_loss: float | None
    train_loss: float | None
    seconds: float
    steps: int
    samples_per_second: float
    bytes_up: int
    bytes_down: int
    edge_blocks: int
    blocks: list[BlockPlace]
    diverged_at_step: int | None = None
    saved_accuracy: float | None = None
    saved_test_loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    saved_metrics: Mapping[str, float] | None = None
    settings: dict[str, JsonValue] | None = None
    """See `settings_of_result`. None in a result that an earlier version has kept."""
    history: list[HistoryRow] = field(default_factory=list)
    """Rows of the run, the last one of its end."""
    best_step: int | None = None
    """Step of the weights in `best.safetensors`; None where none are kept."""
    finished_of_steps: int | None = None
    """Steps that the run would have had, had it not been asked to finish after `steps`; None if it was not."""

    @classmethod
    def of(
        cls,
        statistics: Statistics,
        chain: Chain,
        placement: Placement,
        diverged_at_step: int | None = None,
        settings: dict[str, JsonValue] | None = None,
    ) -> "Summary":
        """Summarise a whole run that ended under this placement."""
        held = {worker: held_blocks(placement, worker) for worker in placement.workers}
        return cls(
            session=statistics.session,
            accuracy=statistics.accuracy,
            test_loss=statistics.test_loss,
            train_loss=statistics.loss,
            seconds=round(statistics.seconds, 3),
            steps=statistics.steps,
            samples_per_second=round(statistics.samples_per_second, 1),
            bytes_up=statistics.bytes_up,
            bytes_down=statistics.bytes_down,
            edge_blocks=statistics.edge_blocks,
            blocks=[
                BlockPlace(
                    block.name,
                    placement.owner(block.index),
                    sum(parameter.numel() for parameter in block.named_parameters().values()),
                    [worker for worker, blocks in held.items() if block.index in blocks],
                )
                for block in chain.blocks
            ],
            diverged_at_step=diverged_at_step,
            metrics=dict(statistics.metrics),
            settings=settings,
            history=list(statistics.history),
            finished_of_steps=statistics.finished_of_steps,
        )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run: the figures, and the user's own module with the trained weights of both sides in it."""

    summary: Summary
    module: nn.Module
    best: Mapping[str, Tensor] | None = None
    """State dict of the best evaluation, by `training.keep_best`; None without that."""
    average: Mapping[str, Tensor] | None = None
    """State dict with the average of the weights, by `training.ema`; None without that."""

    @property
    def history(self) -> list[HistoryRow]:
        """Return the rows of the run: one an epoch and an evaluation."""
        return self.summary.history

    @property
    def facts(self) -> dict[str, Any]:
        """Return the figures, as JSON that `kept` reads."""
        return asdict(self.summary)

    @property
    def model(self) -> bytes:
        """Return the weights, as the bytes of `model.safetensors`; their average is there too, where it is kept."""
        average = {f"{_AVERAGE}{name}": value for name, value in (self.average or {}).items()}
        return safetensors.torch.save(savable(self.module.state_dict() | average))

    @classmethod
    def kept(cls, module: nn.Module, facts: dict[str, Any], model: bytes) -> Self:
        """Restore the result that had these `facts` and `model`. `module` then has its weights. Raises StorageError for
        others."""
        try:
            blocks = [BlockPlace(**block) for block in facts["blocks"]]
            history = [HistoryRow(*row) for row in facts.get("history", ())]
            found = safetensors.torch.load(model)
            average = {
                name.removeprefix(_AVERAGE): found.pop(name) for name in list(found) if name.startswith(_AVERAGE)
            }
            module.load_state_dict(found)
            summary = Summary(**{**facts, "blocks": blocks, "history": history})
            return cls(summary, module, average=average or None)
        except (KeyError, TypeError, RuntimeError, safetensors.SafetensorError) as cause:
            raise StorageError(f"the trained model that was kept is not one of this experiment: {cause}") from cause

    def write(self, directory: Path) -> Path:
        """Write `summary.json`, `history.csv` and `model.safetensors` (state-dict keys are the module's own). Returns the path
        of the first.

        Where some parameters do not learn, `adapters.safetensors` has those that do; `best.safetensors` has the best weights
        where they are kept, and `ema.safetensors` their average. All are written whole, or the folder stays unchanged. The
        files that they replace are kept aside, in a folder `earlier`. Weights that are no finite numbers replace no existing
        model, and a warning says so. A result with the same weights that is there stays as it is where this one knows of no
        sample, as that of a group's member that was killed behind its results. Raises StorageError.
        """
        if self._is_there_whole(directory):
            _log.info("the results are there already", folder=str(directory))
            return directory / SUMMARY
        model, adapters, best, ema, summary = (directory / name for name in (MODEL, ADAPTERS, BEST, EMA, SUMMARY))
        figures = {**self.facts, "history": [row._asdict() for row in self.history]}
        text = json.dumps(_as_json(figures), indent=2, allow_nan=False) + "\n"
        writes: dict[Path, Callable[[Path], object]] = {}
        if (ruined := first_not_finite(self.module)) is None:
            weights = savable(self.module.state_dict())
            writes[model] = lambda path: safetensors.torch.save_file(weights, path)
            if learning := _learning(self.module):
                writes[adapters] = lambda path: safetensors.torch.save_file(learning, path)
        else:
            _log.warning("the model is not written", reason=f"{ruined} holds values that are no finite numbers")
        if (kept := self.best) is not None:
            writes[best] = lambda path: safetensors.torch.save_file(savable(kept), path)
        if (average := self.average) is not None and model in writes:
            writes[ema] = lambda path: safetensors.torch.save_file(savable(average), path)
        writes[summary] = lambda path: path.write_text(text)
        outdated = [
            place for place in (adapters, best, ema) if model in writes and place not in writes and place.exists()
        ]
        is_same = not outdated and is_result_of(directory, self.summary.session, self.summary.steps)
        moves = not is_same and any(place.exists() for place in (*writes, *outdated))
        aside = folder_aside(directory) if moves else None
        write_history(directory, self.history)
        write_together(writes, aside, outdated)
        if aside is not None:
            _log.warning("an earlier result was here, and is kept aside", folder=str(aside))
        return summary

    def _is_there_whole(self, directory: Path) -> bool:
        """Tell whether a folder has the result of these weights that this one has only brought home."""
        if not self.history or self.history[-1].samples or not (directory / SUMMARY).exists():
            return False
        with suppress(OSError, safetensors.SafetensorError):
            there, here = safetensors.torch.load_file(directory / MODEL), savable(self.module.state_dict())
            return there.keys() == here.keys() and all(same_bits(there[name], here[name]) for name in here)
        return False


_AVERAGE = "average of "
"""Beginning of the names under which a result that is kept has the average of the weights; no name of a module has a space."""


def _learning(module: nn.Module) -> BlockTensors:
    """Return the parameters that learn, where others do not; else nothing."""
    parameters = dict(module.named_parameters())
    learning = {name: value for name, value in parameters.items() if value.requires_grad}
    return savable(learning) if len(learning) < len(parameters) else {}


def _as_json(value: Any) -> Any:
    """Replace numbers that JSON lacks: NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
