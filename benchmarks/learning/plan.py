"""What is compared: the networks, the ways to train them, and the recipe that all of them share.

All configurations share one recipe. Its learning rate was chosen for serial training alone; its warm-up is as long as
it is with late gradients in mind, because a network changes most in its first steps, where they fit worst (paper 000, 4.1.2).
"""

from dataclasses import dataclass
from typing import Any

from shared.codec import FeedbackMode
from shared.execution.split import Scheme
from shared.registry import OptimizerConfig
from shared.training.recipe import Recipe, ScheduleConfig

BATCH_SIZE = 32
"""As in paper 000."""
LEARNING_RATES_TRIED = (0.01, 0.02, 0.05)
LEARNING_RATE = 0.05
"""The best of them for serial training."""
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4


@dataclass(frozen=True)
class Network:
    """A network and where it is cut: after half of its blocks. A step takes 20 to 30 ms on one core."""

    factory: str
    kwargs: dict[str, Any]
    cut: int


NETWORKS = {
    "residual": Network("shared.model.zoo:residual_cnn", {"channels": 3, "width": 8}, cut=3),
    "separable": Network("shared.model.zoo:separable_cnn", {"width": 32}, cut=4),
}

_OFF, _LITERAL = FeedbackMode.OFF, FeedbackMode.LITERAL
CONFIGS = {
    "serial": Scheme(),
    "k5": Scheme(5),
    "k5-stash": Scheme(5, "stash"),
    "k5-8bit": Scheme(5, codec="uniform8"),
    "k5-8bit-off": Scheme(5, codec="uniform8", feedback=_OFF),
    "k5-8bit-both": Scheme(5, codec="uniform8", downlink_codec="uniform8-stochastic"),
    "k5-4bit": Scheme(5, codec="uniform4"),
    "k5-4bit-literal": Scheme(5, codec="uniform4", feedback=_LITERAL),
    "k5-4bit-off": Scheme(5, codec="uniform4", feedback=_OFF),
    "k5-2bit": Scheme(5, codec="uniform2"),
    "k5-2bit-off": Scheme(5, codec="uniform2", feedback=_OFF),
    "k5-2bit-channel": Scheme(5, codec="uniform2-channel"),
}
"""In the order of the tables; the first is what the others are held against."""


@dataclass(frozen=True)
class Trial:
    """One training: all that its result depends on, but for the machine."""

    network: str
    config: str
    seed: int
    epochs: int
    train_samples: int
    learning_rate: float

    @property
    def steps_per_epoch(self) -> int:
        """Samples that do not fill a batch are left out."""
        return self.train_samples // BATCH_SIZE

    def recipe(self) -> Recipe:
        """SGD with momentum; a linear warm-up of one epoch, then along a cosine down to zero."""
        return Recipe(
            optimizer=OptimizerConfig(learning_rate=self.learning_rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
            schedule=ScheduleConfig(name="cosine", every="step", warmup_steps=self.steps_per_epoch),
            loss="cross_entropy",
            seed=self.seed,
            steps_per_epoch=self.steps_per_epoch,
            total_steps=self.epochs * self.steps_per_epoch,
        )
