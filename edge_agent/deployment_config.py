"""The section that says where the network is cut, how late gradients may be, and how tensors are packed.

K and the codecs may follow a schedule. A codec may also follow the learning rate: `mbq-adaptive` (paper 001, III-C).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from shared.config import OneOf, Section
from shared.registry import POLICIES, codec_names
from shared.registry.corrections import StalenessCorrection
from shared.training.recipe import ScheduleConfig

MBQ_ADAPTIVE = "mbq-adaptive"
_RISING = ("mbq2", "mbq3", "mbq4")
"""Its codecs of features, from one milestone to the next; the last one stays."""
_FALLING = ("uniform8-stochastic", "uniform4-stochastic")
"""Its codecs of error gradients."""
_UNSAID = "fp32"
"""The codec where the configuration names none."""

T = TypeVar("T", int, str)
Unit = Literal["step", "epoch"]


class Schedule(NamedTuple, Generic[T]):
    """A value that may change as training goes on."""

    pairs: tuple[tuple[int, T], ...]
    """From when on which value holds; begins with 0 and rises."""
    every: Unit
    """Unit of the positions."""

    @property
    def values(self) -> tuple[T, ...]:
        """All that it comes to, the first one first."""
        return tuple(value for _, value in self.pairs)

    def changes(self, steps_per_epoch: int) -> dict[int, T]:
        """The steps after the first from which on another value is set, rising, and which."""
        unit_steps = steps_per_epoch if self.every == "epoch" else 1
        return {position * unit_steps: value for position, value in self.pairs[1:]}


def _check_schedule(given: Any, judge: ValidatorFunctionWrapHandler) -> Any:
    """One value, or pairs of a position and a value that begin with 0 and rise. Raises ValueError."""
    if isinstance(given, list):  # what JSON and TOML have for a tuple
        given = tuple(tuple(pair) if isinstance(pair, list) else pair for pair in given)
    try:
        value = judge(given)
    except ValidationError:
        raise ValueError("neither") from None  # one complaint, not one for each form
    if isinstance(value, tuple):
        positions = [position for position, _ in value]
        if not positions or positions[0] != 0 or any(later <= earlier for earlier, later in pairwise(positions)):
            raise ValueError("not a schedule")
    return value


def _or_pairs(what: str, value: str) -> Any:
    return Field(
        json_schema_extra={"allowed": f"{what}, or a list of [from, {value}] pairs that begins with 0"},
    )


CodecPairs = tuple[tuple[NonNegativeInt, Annotated[str, OneOf(codec_names())]], ...]
_NAMES = f"one of {', '.join(codec_names())}"
Staleness = Annotated[
    NonNegativeInt | tuple[tuple[NonNegativeInt, NonNegativeInt], ...],
    WrapValidator(_check_schedule),
    _or_pairs("an integer of 0 or more", "value"),
]
# A key whose first form is text would take a list on the command line for text, so pairs come first.
FeatureCodec = Annotated[
    CodecPairs | Annotated[str, OneOf((*codec_names(), MBQ_ADAPTIVE))],
    WrapValidator(_check_schedule),
    _or_pairs(f"{_NAMES}, {MBQ_ADAPTIVE}", "codec"),
]
GradientCodec = Annotated[
    CodecPairs | Annotated[str, OneOf(codec_names())], WrapValidator(_check_schedule), _or_pairs(_NAMES, "codec")
]


class DeploymentConfig(Section):
    cut: PositiveInt | None = Field(default=None, examples=[2])
    """Number of blocks that run here. At least one does, so that no raw input leaves this machine; where all blocks run
    here, so does the loss, and nothing crosses the link. Left out, half of them run here, or more where samples could
    be read off behind fewer, or with `engine.profile` as many as the plan for the measured link says."""
    staleness: Staleness = 0
    """Maximum number of steps that a gradient may be late (K). 0 is exact, as if one process trained; more hides the
    link's delay. A list of [from, K] pairs changes it as training goes on: [[0, 4], [8, 5]] is 4 before epoch 8 and 5
    from then."""
    staleness_every: Unit = "epoch"
    """Unit of the positions in a list in `staleness`; both units count from 0. A change does not drain the pipeline:
    batches in flight stay in flight."""
    backward: Annotated[str, OneOf(POLICIES)] = "replay"
    """Treatment of a late gradient. "replay" recomputes its batch with today's weights and holds inputs only; "stash"
    keeps each batch's activations and a copy of the weights that made them."""
    staleness_correction: Literal["auto", StalenessCorrection] = "auto"
    """Correction of late updates. "prediction" computes a batch with weights moved along the optimizer's momentum, by as many
    updates as come before the batch's own; with sgd twice as far, and blocks whose updates come late, as those that wait for
    error gradients, have a momentum of at least 0.99, in which a gradient acts for longer and as much in all.
    It costs a copy of the weights of such blocks, two where sgd has no momentum otherwise, and does nothing with K = 0. For
    sgd, adam, adamw, and rmsprop with a momentum; not in a group. "auto" is "prediction" where `staleness` is above 0,
    `changes` is left out and it can be."""
    feedback: Literal["batch", "literal", "off"] = "batch"
    """Compensation of the error of a lossy codec in the error gradient: with the batch size in the second-order term,
    as the paper prints it, or not at all."""
    codec: FeatureCodec = _UNSAID
    """Codec of features on the uplink. A model of float64 needs "raw": "fp32" would narrow its features. A list of
    [from, codec] pairs changes it as training goes on, on every link: [[0, "mbq2"], [8, "mbq4"]] is mbq2 before epoch
    8. "mbq-adaptive" begins with mbq2 and takes a bit more at each of the first two milestones of a multistep learning
    rate. With it, unless `downlink_codec` names one, error gradients have 8 bits, and 4 from the first milestone on."""
    downlink_codec: GradientCodec = _UNSAID
    """Codec of error gradients on the downlink; a list as in `codec`."""
    recall: bool = False
    """Sends the feature and the labels of each sample once. The trainer keeps them on its disk, and in later epochs gets the
    numbers of the samples of a step alone; this device then reads no sample and computes no block. For one cut behind blocks
    that are all frozen, with `model.frozen_mode = "eval"`, and samples that are the same whenever they are read. A lossy codec
    encodes each sample by itself. A device that has all blocks keeps features itself, behind the first blocks that are frozen,
    and computes these once a sample (`checkpoints.max_recalled_bytes`)."""
    changes: Annotated[str, OneOf(codec_names())] | None = Field(default=None, examples=["topk1"])
    """Codec of what has changed of a sample's feature since it was sent last. Where features repeat from epoch to epoch, as in
    fine-tuning without augmentation, that takes few bits; `codec` is then for a sample's first time. Both sides keep the last
    feature of each sample in memory and in checkpoints. For one cut."""
    changes_above: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """With `changes`, nothing is sent of a sample whose change is no larger than this part of its feature, by their Euclidean
    norms."""
    codec_every: Unit = "epoch"
    """Unit of the positions in lists in `codec` and `downlink_codec`; both units count from 0."""

    @property
    def staleness_schedule(self) -> Schedule[int]:
        """From when on which K holds."""
        return Schedule(_pairs(self.staleness), self.staleness_every)

    @property
    def first_staleness(self) -> int:
        """K at the first step."""
        return self.staleness_schedule.pairs[0][1]

    def codec_schedule(self, learning_rate: ScheduleConfig) -> Schedule[str]:
        """From when on which codec of features holds, where the learning rate goes like this."""
        if self.codec == MBQ_ADAPTIVE:
            return _along(learning_rate, _RISING)
        return Schedule(_pairs(self.codec), self.codec_every)

    def downlink_codec_schedule(self, learning_rate: ScheduleConfig) -> Schedule[str]:
        """From when on which codec of error gradients holds, where the learning rate goes like this."""
        if self.codec == MBQ_ADAPTIVE and self.downlink_codec == _UNSAID:
            return _along(learning_rate, _FALLING)
        return Schedule(_pairs(self.downlink_codec), self.codec_every)

    @property
    def first_codec(self) -> str:
        """The codec of features at the first step."""
        return self.codec_schedule(ScheduleConfig()).pairs[0][1]

    @property
    def follows_codecs(self) -> bool:
        """True if the codec of features is not one for the whole run."""
        return self.codec == MBQ_ADAPTIVE or not isinstance(self.codec, str)

    @model_validator(mode="after")
    def _changes_are_sent(self) -> Self:
        if self.changes is None and self.changes_above:
            raise ValueError(
                f"changes_above is {self.changes_above:g} and changes is left out, so leave it out, too, or set it"
            )
        if self.changes is not None and self.recall:
            raise ValueError(
                "recall is true and changes is set; features that are recalled do not change, so leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _unit_belongs_to_a_list(self) -> Self:
        if isinstance(self.staleness, int) and self.staleness_every != "epoch":
            raise ValueError(
                f'staleness_every is "{self.staleness_every}" but staleness is {self.staleness}, which never changes; give it '
                "a list of [from, value] pairs, or leave staleness_every out"
            )
        if isinstance(self.codec, str) and isinstance(self.downlink_codec, str) and self.codec_every != "epoch":
            raise ValueError(
                f'codec_every is "{self.codec_every}" but neither codec nor downlink_codec is a list; give one a list of '
                "[from, codec] pairs, or leave codec_every out"
            )
        return self


def check_adaptive(deployment: DeploymentConfig, learning_rate: ScheduleConfig) -> None:
    """Refuse `mbq-adaptive` where the learning rate has no milestones. Raises ValueError."""
    if deployment.codec == MBQ_ADAPTIVE and not learning_rate.milestones:
        raise ValueError(
            f'deployment.codec is "{MBQ_ADAPTIVE}" and training.schedule has no milestones, at which it would change; set '
            'training.schedule.name to "multistep" with milestones, or deployment.codec to a list of [from, codec] pairs'
        )


def _pairs(value: T | tuple[tuple[int, T], ...]) -> tuple[tuple[int, T], ...]:
    return value if isinstance(value, tuple) else ((0, value),)


def _along(learning_rate: ScheduleConfig, codecs: Sequence[str]) -> Schedule[str]:
    """One codec after the other, each from a milestone on, for as long as there are both."""
    return Schedule(tuple(zip((0, *learning_rate.milestones), codecs, strict=False)), learning_rate.every)
