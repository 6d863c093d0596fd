"""The recipe: how weights are updated, told to both sides so that neither has to ask during training.

It travels as JSON and is judged by these types on arrival. `optimizers/` and `schedule.py` use the numbers.
"""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from shared.bounds import MOST_LABEL_TENSORS, MOST_RECALLED_SAMPLES, MOST_SAMPLES_AHEAD
from shared.config import OneOf, Section, ShortSection
from shared.config.choices import refuse_unused
from shared.model.learning import FrozenMode, Learning
from shared.registry import LossConfig, MetricConfig, OptimizerConfig, Precision, Precisions, codec_names
from shared.registry.corrections import StalenessCorrection, momentum_of, with_kept_momentum
from shared.registry.metrics import MOST_METRICS

_SCHEDULE_KEYS = {
    "constant": {"warmup_steps"},
    "multistep": {"warmup_steps", "milestones", "gamma"},
    "exponential": {"warmup_steps", "gamma"},
    "cosine": {"warmup_steps", "period", "floor"},
    "linear": {"warmup_steps", "period", "floor"},
    "plateau": {"factor", "patience", "threshold", "cooldown", "min", "metric", "mode"},
    "onecycle": {
        *("pct_start", "anneal_strategy", "three_phase", "div_factor", "final_div_factor"),
        *("cycle_momentum", "base_momentum", "max_momentum"),
    },
}
_FUNCTION = "package.module:function"
Mean = Literal["batch", "token"]
"""Choice of what counts alike in the loss of an update."""


class ScheduleConfig(ShortSection):
    """The course of the learning rate; positions count from step 0, the warm-up included."""

    name: Annotated[
        str, Field(json_schema_extra={"allowed": f"one of {', '.join(_SCHEDULE_KEYS)}, or {_FUNCTION}"})
    ] = "constant"
    """Shape of the learning rate. At step t, from 0, it is learning_rate times (t + 1) / warmup_steps in the warm-up, and
    then times a factor of x, which is t or, with `every = "epoch"`, t // steps_per_epoch. "constant" is 1; "multistep" gamma
    ** m, behind m milestones, those up to x; "exponential" gamma ** x; "cosine" floor + (1 - floor) * (1 + cos(pi * min(x /
    period, 1))) / 2; "linear" floor + (1 - floor) * min(max((period - x) / L, 0), 1), with L = max(period - warmup, 1) in the
    unit of x. "onecycle" is torch's OneCycleLR over the steps of the whole training, with learning_rate as its highest.
    "plateau" is torch's ReduceLROnPlateau: after evaluations that are no better the rate becomes max(rate * factor, min). A
    function of the user's own returns the factor of (t, steps of the training), and no more than these may decide it; each
    trainer must allow it."""
    every: Literal["step", "epoch"] = "epoch"
    """Unit of milestones, period and decay; counted from the start of training, the warm-up included."""
    milestones: tuple[PositiveInt, ...] = Field(default=(), strict=False)
    """Positions at which the factor is multiplied by gamma, in increasing order (multistep)."""
    gamma: PositiveFloat = 0.1
    """The factor of one milestone (multistep) or of one step or epoch (exponential)."""
    period: PositiveInt | None = Field(default=None, examples=[10])
    """Position at which the fall from 1 to the floor ends (cosine, linear). Left out, the end of the whole training."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lowest factor (cosine, linear), held once it is reached."""
    warmup_steps: NonNegativeInt = 0
    """Steps in which the learning rate rises linearly to its full value, always counted in steps."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Number by which the rate is multiplied (plateau)."""
    patience: NonNegativeInt = 10
    """Evaluations in a row that may be no better before the next one lowers the rate (plateau)."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 1e-4
    """Part of the best figure by which another one must be better to count as better (plateau)."""
    cooldown: NonNegativeInt = 0
    """Evaluations after the rate was lowered that do not count as no better (plateau)."""
    min: NonNegativeFloat = 0.0
    """Lowest rate (plateau)."""
    metric: str = "loss"
    """Figure of the evaluations that is followed, as in `training.early_stop` (plateau)."""
    mode: Literal["min", "max"] | None = Field(default=None, examples=["min"])
    """Direction in which it gets better, as in `training.early_stop` (plateau)."""
    pct_start: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Part of the training in which the rate rises to its highest (onecycle)."""
    anneal_strategy: Literal["cos", "linear"] = "cos"
    """Form of rise and fall (onecycle)."""
    three_phase: bool = False
    """True if the rate falls to its first value in the same time as it has risen, and then further (onecycle)."""
    div_factor: Annotated[float, Field(ge=1)] = 25.0
    """Number of times that the first rate is smaller than the highest (onecycle)."""
    final_div_factor: Annotated[float, Field(ge=1)] = 1e4
    """Number of times that the last rate is smaller than the first (onecycle)."""
    cycle_momentum: bool = True
    """True if the momentum, or the first of betas, falls where the rate rises, with an optimizer that has one (onecycle)."""
    base_momentum: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """Momentum at the highest rate (onecycle)."""
    max_momentum: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Momentum at the first and last rate (onecycle)."""

    @model_validator(mode="after")
    def _keys_suit_the_schedule(self) -> Self:
        if self.name not in _SCHEDULE_KEYS and ":" not in self.name:
            raise ValueError(f"name is {self.name!r}; it must be one of {', '.join(_SCHEDULE_KEYS)}, or {_FUNCTION}")
        refuse_unused(
            self, self.name, {**_SCHEDULE_KEYS, **({self.name: {"warmup_steps"}} if ":" in self.name else {})}
        )
        if self.name == "multistep" and not self.milestones:
            raise ValueError("a multistep schedule needs milestones")
        if any(later <= earlier for earlier, later in pairwise(self.milestones)):
            raise ValueError(f"milestones are {list(self.milestones)}; they must increase")
        if self.three_phase and self.pct_start > 0.5:
            raise ValueError(
                f"pct_start is {self.pct_start}; with three_phase the rate falls in the same time as it rises, so it must be "
                "0.5 or less"
            )
        return self

    @property
    def follows_length(self) -> bool:
        """Tell whether a longer training has other rates from its first step on."""
        return (
            ":" in self.name or self.name == "onecycle" or (self.name in ("cosine", "linear") and self.period is None)
        )


class EmaConfig(Section):
    """The exponential moving average of the weights."""

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Part of the average that stays at each update; the rest is the new weights."""


class Changes(Section):
    """The way in which what has changed of the features of samples is sent."""

    samples: Annotated[int, Field(gt=0, le=MOST_RECALLED_SAMPLES)]
    """Samples of the data set: both ends keep the feature of each."""
    codec: Annotated[str, OneOf(codec_names())]
    """Codec of the changes of a sample's feature since it was sent last."""
    above: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of a feature, by its Euclidean norm, that its change has to exceed, or nothing is sent of the sample."""


class Recipe(Section):
    """All that decides an update besides the weights and the batch."""

    optimizer: OptimizerConfig
    """Rule by which weights follow gradients."""
    schedule: ScheduleConfig
    """Rule by which the learning rate follows the step."""
    loss: LossConfig
    """Loss that training minimises."""
    metrics: Annotated[tuple[MetricConfig, ...], Field(max_length=MOST_METRICS)] = ()
    """Metrics of the evaluations."""
    seed: int
    """Decides the first weights and dropout."""
    precision: Precisions = "fp32"
    """Precision of forward passes and of the loss, of all workers or by worker."""
    accumulate_batches: PositiveInt = 1
    """Batches of one update: its gradient is that of the mean of their losses. Steps and schedules go on counting batches."""
    mean: Mean = "batch"
    """Choice of what counts alike in an update: each batch, or each label that the loss does not leave out."""
    ema: EmaConfig | None = None
    """Average of the weights that is kept beside them; None for none."""
    staleness_correction: StalenessCorrection = "none"
    """Treatment of the updates that come between the forward of a batch and its own."""
    checkpoint_activations: bool = False
    """A backward computes the forward of each block again, in place of keeping what it has computed."""
    label_tensors: Annotated[int, Field(ge=1, le=MOST_LABEL_TENSORS)] = 1
    """Number of tensors that the labels of a batch are."""
    samples_ahead: Annotated[int, Field(ge=0, le=MOST_SAMPLES_AHEAD)] = 0
    """Steps whose samples and labels may leave before they begin."""
    output: str | None = None
    """Entry of the model's output that the loss takes, where that is a dictionary."""
    frozen: tuple[str, ...] = ()
    """Names of the parameters that do not learn; see `Learning`."""
    learns: tuple[str, ...] = ()
    """Names of the only parameters that learn; empty where all do but the frozen."""
    frozen_mode: FrozenMode = "train"
    """Mode of modules of which nothing learns."""
    recalled_samples: Annotated[int, Field(ge=0, le=MOST_RECALLED_SAMPLES)] = 0
    """Samples of the data set, where the trainer keeps the feature and the labels of each and the device sends them once; else
    0."""
    recalled_label_bytes: NonNegativeInt = 0
    """Bytes of the labels of one of them, as the loss takes them."""
    changes: Changes | None = None
    """Way of sending changes of a sample's feature after its first time; None where features are sent whole."""
    steps_per_epoch: PositiveInt
    """Turns a step into an epoch."""
    total_steps: PositiveInt
    """Length of the whole training as the schedule sees it."""

    @model_validator(mode="after")
    def _what_is_recalled_stays_the_same(self) -> Self:
        if self.recalls and self.frozen_mode != "eval":
            raise ValueError(
                f'features are recalled, and frozen_mode is "{self.frozen_mode}"; only blocks that are frozen with "eval" '
                "make the same feature in every epoch"
            )
        return self

    @model_validator(mode="after")
    def _features_are_kept_in_one_way(self) -> Self:
        if self.recalls and self.changes is not None:
            raise ValueError("features are recalled, and what changes of them is sent; leave one of the two out")
        return self

    @model_validator(mode="after")
    def _labels_are_read_where_they_are_counted(self) -> Self:
        if self.recalls and self.mean == "token":
            raise ValueError('features are recalled, so no labels are read to count; set training.mean = "batch"')
        return self

    @model_validator(mode="after")
    def _the_correction_is_possible(self) -> Self:
        why = against_prediction(self.optimizer, self.schedule) if self.staleness_correction == "prediction" else None
        if why is not None:
            raise ValueError(f'deployment.staleness_correction is "prediction", which {why}')
        return self

    @property
    def recalls(self) -> bool:
        """Tell whether the trainer keeps the features of samples, so that each crosses once."""
        return self.recalled_samples > 0

    @property
    def model_clip_norm(self) -> float | None:
        """The largest norm of all gradients together; None where blocks are clipped by themselves, or not at all."""
        return self.optimizer.clip_norm if self.optimizer.clip == "model" else None

    @property
    def is_scaled(self) -> bool:
        """Tell whether the loss is scaled, because small gradients would vanish in the precision of some forward."""
        return "fp16" in (self.precision.values() if isinstance(self.precision, dict) else (self.precision,))

    def precision_of(self, worker: str) -> Precision:
        """Return the precision in which a worker computes."""
        return self.precision.get(worker, "fp32") if isinstance(self.precision, dict) else self.precision

    @property
    def base_precision(self) -> Precision:
        """The precision in which the model is divided into blocks and compared: that of all workers, or fp32."""
        return "fp32" if isinstance(self.precision, dict) else self.precision

    @property
    def precisions(self) -> tuple[tuple[str, Precision], ...]:
        """The workers with a precision of their own, each with that; none where all have one."""
        return tuple(sorted(self.precision.items())) if isinstance(self.precision, dict) else ()

    @property
    def other_precisions(self) -> frozenset[Precision]:
        """The precisions of workers beside the base."""
        return frozenset(precision for _, precision in self.precisions) - {self.base_precision}

    def updates_after(self, step: int) -> bool:
        """Tell whether an update follows the backward of a step."""
        return (step + 1) % self.accumulate_batches == 0

    def boundary_from(self, step: int) -> int:
        """Return the first step, from this one on, before which every gradient is applied."""
        return -(-step // self.accumulate_batches) * self.accumulate_batches

    def first_of_update(self, step: int) -> int:
        """Return the first step of the update that a step belongs to."""
        return step - step % self.accumulate_batches

    def is_due(self, step: int, every: int) -> bool:
        """Tell whether a boundary is the first from a multiple of `every` steps on; never where that is 0."""
        return every > 0 and step % every < self.accumulate_batches

    def epoch_of(self, step: int) -> int:
        """Return the epoch, from 1, that a boundary is in or ends: it may be some batches into the next one."""
        return -(-(step + 1 - self.accumulate_batches) // self.steps_per_epoch)

    @property
    def never_falls(self) -> bool:
        """Tell whether the schedule lowers the rate by epochs, and there is no second one in which it could."""
        by_epochs = self.schedule.name in ("linear", "cosine") and self.schedule.every == "epoch"
        return by_epochs and self.total_steps <= self.steps_per_epoch

    @property
    def optimizer_of_states(self) -> OptimizerConfig:
        """The optimizer whose state blocks have at most: with the momentum that they have while updates come late."""
        return with_kept_momentum(self.optimizer, self.staleness_correction)

    @property
    def learning(self) -> Learning:
        """The choice of what learns."""
        return Learning(self.frozen, self.learns, self.frozen_mode)


def against_prediction(optimizer: OptimizerConfig, schedule: ScheduleConfig) -> str | None:
    """Say why weights cannot be predicted, in words that follow "which"; None where they can."""
    momentum = momentum_of(optimizer)
    if momentum is None:
        return (
            f"follows the momentum of the optimizer, and {optimizer.name} has none; take sgd, adam, adamw, or rmsprop with "
            'a momentum above 0, or set it to "none"'
        )
    if schedule.name == "plateau":
        return 'goes by rates that are known before, and plateau has none; set the correction to "none"'
    if schedule.name == "onecycle" and schedule.cycle_momentum and momentum.is_own:
        return (
            "goes by a momentum that stays, and onecycle changes it; set training.schedule.cycle_momentum = false, or the "
            'correction to "none"'
        )
    return None
