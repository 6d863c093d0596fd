"""Plan of the comparison: the networks, the ways to train them, and the recipe that all of them share.

All configurations of a suite share one recipe. Its learning rate was chosen for serial training alone. Its warm-up is as
long as it is with late gradients in mind, because a network changes most in its first steps, where they fit worst (paper
000, 4.1.2).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from shared.codec import FeedbackMode
from shared.execution.split import Scheme
from shared.registry import LossConfig, OptimizerConfig
from shared.training.recipe import Recipe, ScheduleConfig

BATCH_SIZE = 32
"""As in paper 000."""
LEARNING_RATES_TRIED = (0.01, 0.02, 0.05)
LEARNING_RATE = 0.05
"""The best of them for serial training."""
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
OPTIMIZERS = {
    "sgd": OptimizerConfig(learning_rate=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
    "sgd-without-momentum": OptimizerConfig(learning_rate=0.5, weight_decay=WEIGHT_DECAY),
    "adam": OptimizerConfig(name="adam", learning_rate=1e-3),
    "adamw": OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.01),
}
"""Adam and AdamW as PyTorch has them. Without momentum the rate is the best of 0.1, 0.2 and 0.5 for serial training."""


@dataclass(frozen=True)
class Network:
    """A network and where it is cut. A step takes 20 to 30 ms on one core.

    A pair is cut after half of the blocks. A chain is cut between whole residual or separable blocks, so that its three workers
    take as nearly the same time as that allows.
    """

    factory: str
    kwargs: dict[str, Any]
    cuts: dict[str, tuple[int, ...]]
    """By suite."""


NETWORKS = {
    "residual": Network(
        "shared.model.zoo:residual_cnn", {"channels": 3, "width": 8}, cuts={"pair": (3,), "late": (3,), "chain": (1, 2)}
    ),
    "separable": Network(
        "shared.model.zoo:separable_cnn", {"width": 32}, cuts={"pair": (4,), "late": (4,), "chain": (1, 3)}
    ),
}


class Goal(NamedTuple):
    """The accuracy that a configuration has to reach."""

    config: str
    points: float
    """At least so many above the other one; below, where negative."""
    against: str


@dataclass(frozen=True)
class Suite:
    """Configurations that are compared."""

    configs: dict[str, tuple[Scheme, ...]]
    """In the order of the tables: what each begins with, and what follows at each milestone. The others are held against the
    first."""
    goals: tuple[Goal, ...]
    schedule: Literal["cosine", "multistep"]
    """Course of the learning rate after its warm-up."""
    predicted: frozenset[str] = frozenset()
    """Configurations whose staleness is corrected by a prediction of weights."""
    members: int = 0
    """Members of a group that share each batch; gradients go up by the codec, weights come down by the other. 0: no group."""


_OFF, _LITERAL = FeedbackMode.OFF, FeedbackMode.LITERAL
_DOWN_8, _DOWN_4 = "uniform8-stochastic", "uniform4-stochastic"
_ADAPTIVE = (
    Scheme(2, codec="mbq2", downlink_codec=_DOWN_8),
    Scheme(2, codec="mbq3", downlink_codec=_DOWN_4),
    Scheme(2, codec="mbq4", downlink_codec=_DOWN_4),
)
SUITES = {
    "pair": Suite(
        {
            "serial": (Scheme(),),
            "k5": (Scheme(5),),
            "k5-stash": (Scheme(5, "stash"),),
            "k5-8bit": (Scheme(5, codec="uniform8"),),
            "k5-8bit-predicted": (Scheme(5, codec="uniform8"),),
            "k5-8bit-off": (Scheme(5, codec="uniform8", feedback=_OFF),),
            "k5-8bit-both": (Scheme(5, codec="uniform8", downlink_codec=_DOWN_8),),
            "k5-4bit": (Scheme(5, codec="uniform4"),),
            "k5-4bit-literal": (Scheme(5, codec="uniform4", feedback=_LITERAL),),
            "k5-4bit-off": (Scheme(5, codec="uniform4", feedback=_OFF),),
            "k5-2bit": (Scheme(5, codec="uniform2"),),
            "k5-2bit-off": (Scheme(5, codec="uniform2", feedback=_OFF),),
            "k5-2bit-channel": (Scheme(5, codec="uniform2-channel"),),
        },
        # Paper 000, Table 4: with 8 bits and feedback, K = 5 costs less than a point.
        (
            Goal("k5-8bit", -1.0, "serial"),
            Goal("k5-8bit-predicted", -0.3, "serial"),
            Goal("k5-8bit-predicted", 0.0, "k5-8bit"),
        ),
        "cosine",
        predicted=frozenset({"k5-8bit-predicted"}),
    ),
    "late": Suite(
        {
            "serial": (Scheme(),),
            "k5": (Scheme(5),),
            "k5-predicted": (Scheme(5),),
            "k5-8bit": (Scheme(5, codec="uniform8"),),
            "k5-8bit-predicted": (Scheme(5, codec="uniform8"),),
            "k5-stash": (Scheme(5, "stash"),),
            "k5-stash-predicted": (Scheme(5, "stash"),),
        },
        (
            Goal("k5-8bit-predicted", -0.3, "serial"),
            Goal("k5-predicted", 0.0, "k5"),
            Goal("k5-8bit-predicted", 0.0, "k5-8bit"),
            Goal("k5-stash-predicted", 0.0, "k5-stash"),
        ),
        "cosine",
        predicted=frozenset({"k5-predicted", "k5-8bit-predicted", "k5-stash-predicted"}),
    ),
    "chain": Suite(
        {
            "chain": (Scheme(2),),
            **{
                f"chain-{codec}": (Scheme(2, codec=codec, downlink_codec=_DOWN_8),)
                for codec in ("mbq2", "mbq3", "mbq4", "uniform2", "uniform3", "uniform4")
            },
            "chain-adaptive": _ADAPTIVE,
            "chain-mbq2-off": (Scheme(2, codec="mbq2", downlink_codec=_DOWN_8, feedback=_OFF),),
            "chain-adaptive-off": tuple(replace(scheme, feedback=_OFF) for scheme in _ADAPTIVE),
        },
        # Paper 001, Table 4, where uniform quantisation cost it up to 2 points of CIFAR-10.
        (
            Goal("chain-mbq2", -1.0, "chain"),
            Goal("chain-mbq3", -0.75, "chain"),
            Goal("chain-mbq4", -0.5, "chain"),
            Goal("chain-adaptive", -0.5, "chain"),
            Goal("chain-mbq2", 2.0, "chain-uniform2"),
        ),
        "multistep",
    ),
    "group": Suite(
        {
            "group": (Scheme(codec="raw", downlink_codec="raw"),),
            "group-8bit": (Scheme(codec="uniform8", downlink_codec="uniform8"),),
            "group-8bit-off": (Scheme(codec="uniform8", downlink_codec="uniform8", feedback=_OFF),),
            "group-topk1": (Scheme(codec="topk1", downlink_codec="raw"),),
            "group-topk1-off": (Scheme(codec="topk1", downlink_codec="raw", feedback=_OFF),),
        },
        (Goal("group-8bit", -1.0, "group"),),
        "cosine",
        members=2,
    ),
}
"""A pair: a device and a trainer. Late: the same, with and without a correction of staleness. A chain: a device and two
trainers, the features between all of them in few bits. A group: members that compute the whole model, and a trainer that has
the weights."""


@dataclass(frozen=True)
class Trial:
    """One training: all that its result depends on, but for the machine."""

    network: str
    config: str
    seed: int
    epochs: int
    train_samples: int
    learning_rate: float
    suite: str = "pair"
    optimizer: str = "sgd"
    """One of `OPTIMIZERS`."""

    @property
    def milestones(self) -> tuple[int, int]:
        """The epochs from which on a multistep learning rate is a tenth of before: after 65 and after 87 % (paper 001, V-E)."""
        first = max(1, round(0.65 * self.epochs))
        return first, max(first + 1, round(0.87 * self.epochs))

    @property
    def steps_per_epoch(self) -> int:
        """Samples that do not fill a batch are left out."""
        return self.train_samples // BATCH_SIZE

    def recipe(self) -> Recipe:
        """A linear warm-up of one epoch, then as the suite says."""
        schedule = (
            ScheduleConfig(name="cosine", every="step", warmup_steps=self.steps_per_epoch)
            if SUITES[self.suite].schedule == "cosine"
            else ScheduleConfig(name="multistep", milestones=self.milestones, warmup_steps=self.steps_per_epoch)
        )
        return Recipe(
            optimizer=OPTIMIZERS[self.optimizer].model_copy(update={"learning_rate": self.learning_rate}),
            schedule=schedule,
            loss=LossConfig(),
            seed=self.seed,
            staleness_correction="prediction" if self.config in SUITES[self.suite].predicted else "none",
            steps_per_epoch=self.steps_per_epoch,
            total_steps=self.epochs * self.steps_per_epoch,
        )
