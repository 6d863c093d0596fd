"""Trainers of the copies of a calibration: this device, on the user's own samples, or the trainer, on its operator's
stand-in.

Both compare against samples that are neither trained on nor tested on.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from edge_agent.config import EdgeConfig
from edge_agent.data import BatchLoader, Dataset, evaluation_batches
from edge_agent.data.named import load_dataset
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.profiling.calibration import WHOLE, Lossiness
from shared.client.trainer import TrainerClient
from shared.codec import FeedbackMode
from shared.errors import ConfigError
from shared.execution.copy_training import Copy, CopyTiming, steps_of
from shared.execution.counted_batches import Batch as CopyBatch
from shared.execution.split import Scheme
from shared.registry import codec_of_bits
from shared.tensor_wire import kinds_of
from shared.training.metrics import load_metrics
from shared.training.recipe import Recipe
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class Copies(Protocol):
    """Trains copies of one experiment's model."""

    where: str
    """The side that trains, as words in a sentence."""

    async def time(self, candidate: Lossiness) -> CopyTiming:
        """A few steps of it. Raises IsthmusError."""
        ...

    async def train(self, candidate: Lossiness, seed: int, epochs: float, share: float) -> Mapping[str, float]:
        """The figures of a copy after its training, by name, of the calibration's samples.

        epochs: of this training. share: its length as a part of a whole one's. Raises IsthmusError.
        """
        ...


class DeviceCopies:
    """Trains in this process, on `data.train`, and judges by `data.calibration`."""

    where = "on this device"

    def __init__(self, experiment: Experiment, threads: AgentThreads) -> None:
        """Raises ConfigError without samples to judge by, DataError for such as cannot be loaded."""
        self._config = experiment.config
        self._threads = threads
        self._collate = experiment.collate
        self._judged = _calibration_set(experiment.config)

    async def time(self, candidate: Lossiness) -> CopyTiming:
        """See `Copies`."""
        began, data = time.monotonic(), self._config.data
        async with self._experiment(self._config.training.seed) as experiment:
            loader = experiment.loader
            step_seconds, judged_seconds, figures = await self._threads.compute.run(
                lambda: self._copy(experiment, candidate, experiment.recipe).timed(
                    lambda first, stop: _tensors(loader, first, stop), self._batches()
                )
            )
        batches = -(-len(self._judged) // data.batch_size)
        timing = CopyTiming(step_seconds, judged_seconds, loader.steps_per_epoch, batches, figures)
        return timing.started_within(time.monotonic() - began)

    async def train(self, candidate: Lossiness, seed: int, epochs: float, share: float) -> Mapping[str, float]:
        """An epoch at a time, so that an interruption is heard."""
        async with self._experiment(seed) as experiment:
            loader, compute = experiment.loader, self._threads.compute
            steps, epoch = steps_of(epochs, loader.steps_per_epoch), loader.steps_per_epoch
            recipe = recipe_of_length(experiment.recipe, steps, share)
            copy = await compute.run(self._copy, experiment, candidate, recipe)
            for first in range(0, steps, epoch):
                stop = min(first + epoch, steps)
                await compute.run(copy.train, first, stop, _tensors(loader, first, stop))
            return await compute.run(copy.judge, self._batches())

    @asynccontextmanager
    async def _experiment(self, seed: int) -> AsyncIterator[Experiment]:
        training = self._config.training.model_copy(update={"seed": seed})
        experiment = await asyncio.to_thread(Experiment, self._config.model_copy(update={"training": training}))
        try:
            yield experiment
        finally:
            await self._threads.compute.run(experiment.close)

    def _copy(self, experiment: Experiment, candidate: Lossiness, recipe: Recipe) -> Copy:
        scheme = scheme_of(self._config, candidate)
        metrics = load_metrics(recipe, None)
        return Copy(experiment.chain, candidate.cut, recipe, scheme, experiment.held.device, metrics)

    def _batches(self) -> Iterator[CopyBatch]:
        data = self._config.data
        for batch in evaluation_batches(self._judged, data.batch_size, data.workers, self._collate):
            yield batch.inputs, batch.labels


class TrainerCopies:
    """Has the trainer do it, on the data set that its operator has put there; nothing of the device's samples is sent."""

    where = "on the trainer"

    def __init__(self, experiment: Experiment, client: TrainerClient) -> None:
        self._experiment = experiment
        self._client = client

    async def time(self, candidate: Lossiness) -> CopyTiming:
        """See `Copies`."""
        began, recipe = time.monotonic(), self._experiment.recipe
        told = await self._client.time_copy(self._request(candidate, recipe, epochs=1.0, timing_only=True))
        timing = CopyTiming(
            told.seconds_per_step,
            told.seconds_per_judged_batch,
            told.steps_per_epoch,
            told.judged_batches,
            tuple(told.figures),
        )
        return timing.started_within(time.monotonic() - began)

    async def train(self, candidate: Lossiness, seed: int, epochs: float, share: float) -> Mapping[str, float]:
        """See `Copies`."""
        recipe = recipe_of_length(self._experiment.recipe, None, share).model_copy(update={"seed": seed})
        return (await self._client.train_copy(self._request(candidate, recipe, epochs))).figures

    def _request(
        self, candidate: Lossiness, recipe: Recipe, epochs: float, *, timing_only: bool = False
    ) -> pb.TrainCopyRequest:
        experiment = self._experiment
        config, scheme = experiment.config, scheme_of(experiment.config, candidate)
        return pb.TrainCopyRequest(
            protocol_version=PROTOCOL_VERSION,
            model=pb.Model(factory=config.model.factory, kwargs_json=json.dumps(config.model.kwargs)),
            inputs=kinds_of(experiment.example.specs),
            input_names=experiment.example.names,
            recipe_json=recipe.model_dump_json(),
            cut=candidate.cut,
            staleness=candidate.staleness,
            codec=scheme.codec,
            backward=scheme.backward,
            feedback=scheme.feedback.value,
            epochs=epochs,
            timing_only=timing_only,
        )


def scheme_of(config: EdgeConfig, candidate: Lossiness) -> Scheme:
    """Return the scheme in which a candidate's batches cross the cut; error gradients in float32."""
    deployment = config.deployment
    return Scheme(
        candidate.staleness,
        deployment.backward,
        FeedbackMode(deployment.feedback),
        codec_of_bits(candidate.bits, deployment.first_codec),
    )


def recipe_of_length(recipe: Recipe, steps: int | None, share: float) -> Recipe:
    """A recipe whose schedule is as long as a training; a short one warms up for less.

    steps: None where only who trains knows how many there are.
    """
    warm_up = {} if share == WHOLE else {"warmup_steps": round(recipe.schedule.warmup_steps * share)}
    length = {} if steps is None else {"total_steps": steps}
    return recipe.model_copy(update={**length, "schedule": recipe.schedule.model_copy(update=warm_up)})


def _tensors(loader: BatchLoader, first_step: int, stop_step: int) -> Iterator[CopyBatch]:
    for batch in loader.iterate(first_step, stop_step):
        yield batch.inputs, batch.labels


def _calibration_set(config: EdgeConfig) -> Dataset:
    data = config.data
    if data.calibration is None:
        raise ConfigError(
            "data.calibration is not set; a calibration compares copies on samples that are neither trained on "
            "(data.train) nor tested on (data.test)"
        )
    for key, other in (("data.train", data.train), ("data.test", data.test)):
        if data.calibration == other:
            raise ConfigError(f"data.calibration and {key} are the same; a calibration needs samples of its own")
    return load_dataset(data.calibration.factory, data.calibration.kwargs)
