"""Isthmus in a program of one's own: `from isthmus import EdgeConfig, load_config, train`.

The packages beside this module are its inside.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus_entry_points import FOLDER, PACKAGES

if TYPE_CHECKING:
    from edge_agent.callbacks.run_handle import RunHandle
    from edge_agent.config import EdgeConfig
    from edge_agent.run import run_training, train
    from edge_agent.training.events import (
        ActivityChanged,
        BeganAgain,
        CheckpointShared,
        CheckpointTaken,
        Ended,
        Evaluated,
        HandedOver,
        LinkLost,
        Migrated,
        MigrationFailed,
        Placed,
        Prepared,
        Relayed,
        Replaced,
        RolledBack,
        RowAdded,
        StepFinished,
        StoodIn,
    )
    from edge_agent.training.history import HistoryRow
    from edge_agent.training.result import Summary, TrainingResult
    from edge_agent.training.statistics import Statistics
    from shared.config import load_config
    from shared.errors import (
        AccessError,
        BusyError,
        ConfigError,
        DataError,
        DeviceError,
        DivergedError,
        FailedError,
        GoneError,
        IsthmusError,
        ListenError,
        ModelError,
        PlanError,
        ProtocolError,
        RefusedError,
        StalledError,
        StoppedError,
        StorageError,
        UnreachableError,
    )
    from shared.events import Event

__all__ = [
    "AccessError",
    "ActivityChanged",
    "BeganAgain",
    "BusyError",
    "CheckpointShared",
    "CheckpointTaken",
    "ConfigError",
    "DataError",
    "DeviceError",
    "DivergedError",
    "EdgeConfig",
    "Ended",
    "Evaluated",
    "Event",
    "FailedError",
    "GoneError",
    "HandedOver",
    "HistoryRow",
    "IsthmusError",
    "LinkLost",
    "ListenError",
    "Migrated",
    "MigrationFailed",
    "ModelError",
    "Placed",
    "PlanError",
    "Prepared",
    "ProtocolError",
    "RefusedError",
    "Relayed",
    "Replaced",
    "RolledBack",
    "RowAdded",
    "RunHandle",
    "StalledError",
    "Statistics",
    "StepFinished",
    "StoodIn",
    "StoppedError",
    "StorageError",
    "Summary",
    "TrainingResult",
    "UnreachableError",
    "load_config",
    "run_training",
    "train",
]

_ERRORS = [name for name in __all__ if name.endswith("Error")]
_MODULES = (
    dict.fromkeys(__all__, "edge_agent.training.events")
    | dict.fromkeys(_ERRORS, "shared.errors")
    | {
        "EdgeConfig": "edge_agent.config",
        "Event": "shared.events",
        "HistoryRow": "edge_agent.training.history",
        "RunHandle": "edge_agent.callbacks.run_handle",
        "Statistics": "edge_agent.training.statistics",
        "Summary": "edge_agent.training.result",
        "TrainingResult": "edge_agent.training.result",
        "load_config": "shared.config",
        "run_training": "edge_agent.run",
        "train": "edge_agent.run",
    }
)


def _check_packages() -> None:
    """Raise ImportError where another package was imported under the name of one of ours before."""
    for name in PACKAGES:
        there = Path(next(iter(getattr(sys.modules.get(name), "__path__", ())), FOLDER / name))
        if there != FOLDER / name:
            raise ImportError(f"{there} was imported as {name}, the name of a package of Isthmus; import isthmus first")


_check_packages()


def __getattr__(name: str) -> Any:
    """One of `__all__`. It is imported when it is asked for, because not every program has use for torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the names that a notebook completes to: those of `__all__` too, though they are not imported yet."""
    return sorted({*globals(), *__all__})
