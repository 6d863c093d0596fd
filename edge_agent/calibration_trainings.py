"""`edge-agent profile --calibrate`: trains copies of the model on this device, and puts into the profile what it bears.

Both halves of a copy run in this process (`shared/split_simulation.py`): accuracy depends on the order of updates and on what
codecs leave of a feature, not on the link. It is taken from the test set. Each training is written down when it ends.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import structlog
import xxhash
from pydantic import Field, NonNegativeFloat

from edge_agent.calibration import FULL_BITS, Calibrated, Candidate, calibrate, most_candidates
from edge_agent.data import Dataset, evaluation_batches
from edge_agent.engine_inputs import codec_of
from edge_agent.experiment import Experiment
from edge_agent.profile_parts import Part, PartFile
from edge_agent.workers import Workers
from shared.codec import FeedbackMode, seed_stochastic_rounding
from shared.config import Section
from shared.errors import ConfigError
from shared.model.random_state import derive_seed
from shared.planning.profile import Profile
from shared.split_simulation import Scheme, Simulation, steady_events

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class CalibrationSettings:
    """What is asked, and how much may be spent on the answer."""

    budget_points: float = 1.0
    """Accuracy that may be lost, in points of 100."""
    epochs: int = 5
    """Of each training; its schedule is as long."""
    seeds: int = 3
    """Trainings of each candidate, with training.seed and the seeds after it."""
    most_staleness: int = 8
    """Largest K that is tried."""
    cuts: tuple[int, ...] | None = None
    """Cuts to calibrate; None takes all that were measured. No other can be planned with afterwards."""


class Training(Section):
    """A training that is done."""

    cut: int
    staleness: int
    bits: int
    seed: int
    accuracy: NonNegativeFloat = Field(le=1.0)
    """Share of the test samples that it got right."""


class Trainings(Part):
    """Those of an unfinished calibration."""

    done: tuple[Training, ...] = ()


class Calibration:
    """One calibration of an experiment's model."""

    def __init__(
        self,
        experiment: Experiment,
        settings: CalibrationSettings,
        workers: Workers,
        file: PartFile[Trainings],
        on_training: Callable[[int, int], None],
    ) -> None:
        """on_training: told how many of at most how many trainings are done.

        Raises ConfigError without a test set, and for a cut out of range.
        """
        if experiment.test is None:
            raise ConfigError("data.test is not set; a calibration compares accuracies on the test set")
        blocks = len(experiment.chain.blocks)
        self._wanted = range(1, blocks) if settings.cuts is None else sorted(set(settings.cuts))
        if not set(self._wanted) <= set(range(1, blocks)):
            raise ConfigError(
                f"the cuts to calibrate are {_listed(self._wanted)}; with {blocks} blocks they must be from 1 to {blocks - 1}"
            )
        self._config, self._test = experiment.config, experiment.test
        self._settings = settings
        self._workers = workers
        self._file = file
        self._trainings = Trainings(of="")
        self._on_training = on_training
        self._most = 0

    async def of(self, profile: Profile) -> Profile:
        """The profile with `min_bits` and `max_staleness`, and with how they were found. Raises IsthmusError."""
        settings = self._settings
        cuts = [cut for cut in self._wanted if profile.edge_seconds[cut] is not None]
        if not cuts:
            raise ConfigError(f"nothing to calibrate: of the cuts {_listed(self._wanted)} none could be measured")
        self._trainings = await asyncio.to_thread(self._file.load, self._identity())
        self._most = settings.seeds * most_candidates(len(cuts), settings.most_staleness)
        found = await calibrate(self._accuracies, cuts, settings.most_staleness, settings.budget_points / 100)
        self._on_training(self._most, self._most)
        return calibrated(profile, found, settings, self._trainings.done)

    def _identity(self) -> str:
        """What the trainings belong to, beside what each of them says itself."""
        config = self._config
        sections = (config.model, config.data, config.training, config.compute)
        deployment = (config.deployment.backward, config.deployment.feedback, config.deployment.codec)
        parts = (*(section.model_dump_json() for section in sections), deployment, self._settings.epochs)
        return xxhash.xxh3_64_hexdigest(repr(parts).encode())

    async def _accuracies(self, candidate: Candidate) -> Sequence[float]:
        first = self._config.training.seed
        return [await self._accuracy(candidate, seed) for seed in range(first, first + self._settings.seeds)]

    async def _accuracy(self, candidate: Candidate, seed: int) -> float:
        asked = {**asdict(candidate), "seed": seed}
        for training in self._trainings.done:
            if training.model_dump(exclude={"accuracy"}) == asked:
                return training.accuracy
        accuracy = await self._train(candidate, seed)
        _log.info("calibration: a copy was trained", **asked, accuracy=round(accuracy, 4))
        done = (*self._trainings.done, Training(**asked, accuracy=accuracy))
        self._trainings = self._trainings.model_copy(update={"done": done})
        await asyncio.to_thread(self._file.save, self._trainings)
        self._on_training(len(done), self._most)
        return accuracy

    async def _train(self, candidate: Candidate, seed: int) -> float:
        """An epoch at a time, so that an interruption is heard."""
        changes = {"seed": seed, "epochs": self._settings.epochs, "max_steps": None}
        training = self._config.training.model_copy(update=changes)
        experiment = await asyncio.to_thread(Experiment, self._config.model_copy(update={"training": training}))
        copy = await self._workers.compute.run(_Copy, experiment, candidate)
        for epoch in range(self._settings.epochs):
            await self._workers.compute.run(copy.train, epoch)
        return await self._workers.compute.run(copy.accuracy, self._test)


class _Copy:
    """A copy of the model that is trained as a candidate says; float32 error gradients. Used on the compute thread."""

    def __init__(self, experiment: Experiment, candidate: Candidate) -> None:
        deployment = experiment.config.deployment
        self._experiment = experiment
        self._scheme = Scheme(
            candidate.staleness,
            deployment.backward,
            FeedbackMode(deployment.feedback),
            "fp32" if candidate.bits == FULL_BITS else codec_of(candidate.bits, deployment.codec),
        )
        self._simulation = Simulation(
            experiment.chain, candidate.cut, experiment.recipe, self._scheme, experiment.stage.device
        )
        seed_stochastic_rounding(derive_seed(experiment.recipe.seed, "codecs"))

    def train(self, epoch: int) -> None:
        """One epoch. Raises ConfigError where the loss counts no right answers."""
        loader = self._experiment.loader
        steps = (epoch * loader.steps_per_epoch, (epoch + 1) * loader.steps_per_epoch)
        batches = ((batch.inputs, batch.labels) for batch in loader.iterate(*steps))
        losses = self._simulation.run(steady_events(*steps, self._scheme.staleness), batches)
        if losses[-1].correct is None:
            raise ConfigError(
                "a calibration compares accuracies; it needs class numbers as labels and one output a class, which "
                f"this model and training.loss {self._experiment.config.training.loss!r} do not have"
            )

    def accuracy(self, test: Dataset) -> float:
        """Share of the test samples that are right."""
        data = self._experiment.config.data
        losses = [
            self._simulation.evaluate(batch.inputs, batch.labels)
            for batch in evaluation_batches(test, data.batch_size, data.workers)
        ]
        return sum(loss.correct or 0 for loss in losses) / sum(loss.samples for loss in losses)


def calibrated(
    profile: Profile, found: Calibrated, settings: CalibrationSettings, trainings: Sequence[Training]
) -> Profile:
    """The profile with what was found. A cut that was not calibrated is not planned with; edge-only has no feature to pack."""
    cuts = range(len(profile))
    spread = max(found.baseline) - min(found.baseline)
    how = {
        "budget_points": settings.budget_points,
        "epochs": settings.epochs,
        "serial_accuracy": list(found.baseline),
        "serial_spread_points": 100 * spread,
        "trainings": [training.model_dump() for training in trainings],
    }
    return replace(
        profile,
        min_bits=(*(found.min_bits.get(cut) for cut in cuts), FULL_BITS),
        max_staleness=found.max_staleness,
        extra={**profile.extra, "calibration": how},
    )


def _listed(cuts: Sequence[int]) -> str:
    return ", ".join(map(str, cuts)) or "none"
