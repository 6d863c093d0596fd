"""The events of calls to trainers."""

from dataclasses import dataclass

from shared.events.dispatcher import Event


@dataclass(frozen=True, slots=True)
class TrainersAwaited(Event):
    """Calls wait for trainers that cannot be reached, or wait no more."""

    reasons: tuple[str, ...]
    """A sentence for each cause, which names the trainer; empty where nothing waits."""
