"""A training in this process, and what its steps take of the processor."""

import time
from dataclasses import dataclass

from edge_agent.training.statistics import Statistics
from isthmus import EdgeConfig, TrainingResult, train


@dataclass(frozen=True)
class Trained:
    """A training that has ended."""

    result: TrainingResult
    step_processor_seconds: float
    """Processor time of the device, from the second epoch on."""


def trained(config: EdgeConfig) -> Trained:
    """Train for two epochs or more."""
    used = dict[int, float]()
    """Processor time at the ends of steps, of the second epoch on."""

    def note(statistics: Statistics) -> None:
        if statistics.steps * config.training.epochs >= statistics.total_steps:
            used.setdefault(statistics.steps, time.process_time())

    result = train(config, note)
    (first, began), *_, (last, ended) = used.items()
    return Trained(result, (ended - began) / (last - first))
