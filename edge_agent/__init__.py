"""The edge agent: keeps the data, runs the first blocks, and trains with the cloud's help."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_agent.config import EdgeConfig
    from edge_agent.run import run_training, train
    from edge_agent.training.result import Summary, TrainingResult
    from edge_agent.training.statistics import Statistics

__all__ = ["EdgeConfig", "Statistics", "Summary", "TrainingResult", "run_training", "train"]

_MODULES = {
    "EdgeConfig": "edge_agent.config",
    "Statistics": "edge_agent.training.statistics",
    "Summary": "edge_agent.training.result",
    "TrainingResult": "edge_agent.training.result",
    "run_training": "edge_agent.run",
    "train": "edge_agent.run",
}


def __getattr__(name: str) -> Any:
    """One of `__all__`. It is imported when it is asked for, because most commands have no use for torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the names that a notebook completes to: those of `__all__` too, though they are not imported yet."""
    return sorted({*globals(), *__all__})
