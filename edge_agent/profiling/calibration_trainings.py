"""`edge-agent profile --calibrate`: trains copies of the model, and puts into the profile what it bears.

Each training is written down when it ends, so that a calibration that was interrupted goes on where it was.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import structlog
import xxhash
from pydantic import Field, PositiveFloat

from edge_agent.config import EdgeConfig
from edge_agent.experiment.experiment import Experiment
from edge_agent.improvement_config import FollowedFigure
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.profile import Profile
from edge_agent.profiling.calibrate_on import CalibrateOn
from edge_agent.profiling.calibration import (
    WHOLE,
    Calibrated,
    Lossiness,
    calibrate,
    usual_shares,
)
from edge_agent.profiling.calibration_copies import Copies
from edge_agent.profiling.events import CopyTrained, Estimated
from edge_agent.profiling.profile_parts import Part, PartFile
from shared.config import Section
from shared.errors import ConfigError, ProtocolError
from shared.events import Emit
from shared.execution.copy_training import CopyTiming
from shared.registry import bit_widths as codec_bit_widths
from shared.registry.metrics import ACCURACY
from shared.version import PROTOCOL_VERSION

_log = structlog.get_logger(__name__)
_TIMED_BITS = 8
_OF_ACCURACY = FollowedFigure(metric=ACCURACY)
_WORST = -1e300
"""Score of a copy whose figure is no finite number."""


@dataclass(frozen=True)
class CalibrationSettings:
    """The questions of a calibration, and the effort that may be spent on the answers."""

    budget_points: float = 1.0
    """Accuracy that may be lost, in points of 100; of another figure, per cent of the serial training's."""
    epochs: int = 5
    """The length of a whole training, which its schedule fits; most trainings stop at half of it or before."""
    seeds: int = 3
    """Trainings of each candidate, with training.seed and the seeds after it."""
    most_staleness: int = 8
    """Largest K that is tried."""
    cuts: tuple[int, ...] | None = None
    """Cuts to calibrate; None takes all that were measured. No other can be planned with afterwards."""
    bits: tuple[int, ...] = (2, 4, 8, 32)
    """Widths to try; float32 is taken where none of them holds."""
    on: CalibrateOn = CalibrateOn.DEVICE
    """Side that trains the copies, and so the samples that it trains on."""
    figure: FollowedFigure = _OF_ACCURACY
    """Figure by which copies are judged."""


class Training(Section):
    """A training that is done."""

    cut: int
    staleness: int
    bits: int
    seed: int
    share: PositiveFloat = Field(le=WHOLE)
    """Its length as a part of a whole training's."""
    value: float | None
    """Figure of the samples by which it was judged; None for no finite number."""


class Trainings(Part):
    """The trainings of an unfinished calibration."""

    done: tuple[Training, ...] = ()


class Calibration:
    """One calibration of an experiment's model."""

    def __init__(
        self,
        experiment: Experiment,
        settings: CalibrationSettings,
        copies: Copies,
        file: PartFile[Trainings],
        emit: Emit,
    ) -> None:
        self._config = experiment.config
        self._wanted = wanted_cuts(experiment, settings)
        self._settings = settings
        self._copies = copies
        self._file = file
        self._trainings = Trainings(of="")
        self._emit = emit
        self._expected = 0

    async def of(self, profile: Profile) -> Profile:
        """The profile with `min_bits` and `max_staleness`, and with how they were found. Raises IsthmusError."""
        settings = self._settings
        cuts = [cut for cut in self._wanted if np.isfinite(profile.workers[0].replayed[0, cut])]
        if not cuts:
            raise ConfigError(f"nothing to calibrate: of the cuts {_listed(self._wanted)} none could be measured")
        self._trainings = await asyncio.to_thread(self._file.load, self._identity())
        widths = bit_widths(settings)
        shares = usual_shares(len(cuts), settings.most_staleness, widths)
        self._expected = settings.seeds * len(shares)
        timing = await self._copies.time(Lossiness(cuts[len(cuts) // 2], settings.most_staleness, _TIMED_BITS))
        if (name := settings.figure.metric) not in timing.figures:
            raise ConfigError(
                f"the calibration compares {name!r}, which this model and training.loss {self._config.training.loss.name!r} do "
                f"not have; choose --calibrate-metric of {_listed(timing.figures)}"
            )
        self._emit(Estimated(estimate(timing, shares, cuts, settings, self._copies.where)))
        budget = settings.budget_points / 100
        is_share = name != ACCURACY
        found = await calibrate(self._scores, cuts, settings.most_staleness, budget, widths, is_share=is_share)
        done = len(self._trainings.done)
        self._emit(CopyTrained(done, done))
        return calibrated(profile, found, settings, self._trainings.done)

    def _identity(self) -> str:
        """Name the experiment that the trainings belong to, beside the fields that each of them has itself."""
        config = self._config
        sections = (config.model, config.data, config.training, config.compute)
        of = config.deployment
        deployment = (of.backward, self._config.staleness_correction, of.feedback, of.first_codec)
        on = (self._settings.on, *_place(config, self._settings.on), self._settings.figure.metric)
        parts = (
            PROTOCOL_VERSION,
            *(section.model_dump_json() for section in sections),
            deployment,
            self._settings.epochs,
            on,
        )
        return xxhash.xxh3_64_hexdigest(repr(parts).encode())

    async def _scores(self, candidate: Lossiness, share: float) -> Sequence[float]:
        first, seeds = self._config.training.seed, self._settings.seeds
        values = [await self._value(candidate, share, seed) for seed in range(first, first + seeds)]
        sign = -1.0 if self._settings.figure.falls else 1.0
        return [_WORST if value is None else sign * value for value in values]

    async def _value(self, candidate: Lossiness, share: float, seed: int) -> float | None:
        asked = {**asdict(candidate), "seed": seed, "share": share}
        for training in self._trainings.done:
            if training.model_dump(exclude={"value"}) == asked:
                return training.value
        name = self._settings.figure.metric
        figures = await self._copies.train(candidate, seed, share * self._settings.epochs, share)
        if name not in figures:
            raise ProtocolError(f"a copy was judged without {name!r}, which its timing named")
        value = figures[name] if math.isfinite(figures[name]) else None
        if value is None and (candidate.staleness, candidate.bits) == (0, FLOAT32_BITS):
            raise ConfigError(
                f"the {name} of a serial training is no finite number, so there is nothing to compare with"
            )
        _log.info("calibration: a copy was trained", **asked, **{name: value})
        done = (*self._trainings.done, Training(**asked, value=value))
        self._trainings = self._trainings.model_copy(update={"done": done})
        await asyncio.to_thread(self._file.save, self._trainings)
        self._emit(CopyTrained(len(done), max(self._expected, len(done))))
        return value


def wanted_cuts(experiment: Experiment, settings: CalibrationSettings) -> Sequence[int]:
    """The cuts to calibrate. Raises ConfigError for one out of range."""
    blocks = len(experiment.chain.blocks)
    wanted = range(1, blocks) if settings.cuts is None else sorted(set(settings.cuts))
    if not set(wanted) <= set(range(1, blocks)):
        raise ConfigError(
            f"the cuts to calibrate are {_listed(wanted)}; with {blocks} blocks they must be from 1 to {blocks - 1}"
        )
    return wanted


def bit_widths(settings: CalibrationSettings) -> Sequence[int]:
    """The widths to try, rising, float32's the last. Raises ConfigError for one that there is not."""
    widths = sorted({*settings.bits, FLOAT32_BITS})
    if not set(widths) <= set(codec_bit_widths()):
        raise ConfigError(f"the bits to calibrate are {_listed(widths)}; there are {_listed(codec_bit_widths())}")
    return widths


def estimate(
    timing: CopyTiming, shares: Sequence[float], cuts: Sequence[int], settings: CalibrationSettings, where: str
) -> str:
    """Say how long a calibration will take, and how that was found, in one sentence for a person who may change their
    mind."""
    seconds = settings.seeds * sum(timing.seconds(share * settings.epochs) for share in shares)
    whole = settings.seeds * sum(share == WHOLE for share in shares)
    around = timing.start_seconds + timing.judged_batches * timing.seconds_per_judged_batch
    return (
        f"calibrating at the cuts {_listed(cuts)} {where} takes about {_span(seconds)}: "
        f"{settings.seeds * len(shares)} trainings, {whole} of them of {settings.epochs} epochs of "
        f"{timing.steps_per_epoch} steps and the others of a half of that or less, at "
        f"{1e3 * timing.seconds_per_step:.3g} ms a step, as the mean of a few steps was just now, and {_span(around)} to "
        "start and judge each; a short training that misleads adds whole ones"
    )


def calibrated(
    profile: Profile, found: Calibrated, settings: CalibrationSettings, trainings: Sequence[Training]
) -> Profile:
    """The profile with what was found. A cut that was not calibrated is not planned with; edge-only has no feature to pack."""
    cuts = range(len(profile))
    spread = max(found.baseline) - min(found.baseline)
    how = {
        "on": settings.on.value,
        "budget_points": settings.budget_points,
        "epochs": settings.epochs,
        "metric": settings.figure.metric,
        "serial": [-score if settings.figure.falls else score for score in found.baseline],
        "serial_spread": spread,
        "trainings": [training.model_dump() for training in trainings],
    }
    return replace(
        profile,
        min_bits=(*(found.min_bits.get(cut) for cut in cuts), FLOAT32_BITS),
        max_staleness=found.max_staleness,
        remarks={**profile.remarks, "calibration": how},
    )


def _place(config: EdgeConfig, on: CalibrateOn) -> tuple[str, ...]:
    """Another trainer may have other samples."""
    return (config.only_trainer.address,) if on is CalibrateOn.TRAINER else ()


def _span(seconds: float) -> str:
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "none"
