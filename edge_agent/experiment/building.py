"""What a configuration means before any trainer is asked: data, model, recipe, first deployment.

Everything that can be wrong on the edge's side is found out by building it.
"""

import torch

from edge_agent.config import EdgeConfig
from edge_agent.data import BatchLoader, EvaluationLoader, evaluation_batches
from edge_agent.data.named import load_dataset
from edge_agent.experiment.privacy import check_labels_may_leave
from edge_agent.experiment.start_weights import load_weights
from shared.codec import codec_by_name
from shared.errors import ConfigError
from shared.model.build import build_checked_chain, check_cut
from shared.model.spec import TensorSpec
from shared.training.device import choose_device, prepare_device
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import check_labels
from shared.training.recipe import Recipe
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


class Experiment:
    """Raises ConfigError, DataError or ModelError for what cannot be trained."""

    def __init__(self, config: EdgeConfig, schedule_steps: int | None = None) -> None:
        """schedule_steps: the length of the training that the schedule was begun with; None for a new one."""
        self.config = config
        data, training, deployment = config.data, config.training, config.deployment
        train = load_dataset(data.train.factory, data.train.kwargs)
        self.test = load_dataset(data.test.factory, data.test.kwargs) if data.test is not None else None
        self.loader = BatchLoader(train, data.batch_size, training.seed, data.drop_last, data.workers)
        self.samples = len(train)
        total_steps = training.epochs * self.loader.steps_per_epoch
        self.steps = min(total_steps, training.max_steps or total_steps)
        self.recipe = Recipe(
            optimizer=training.optimizer,
            schedule=training.schedule,
            loss=training.loss,
            seed=training.seed,
            frozen=config.model.frozen,
            steps_per_epoch=self.loader.steps_per_epoch,
            total_steps=schedule_steps or total_steps,
        )
        first = next(evaluation_batches(train, data.batch_size))
        check_labels_may_leave("data.train", first, config)
        if self.test is not None:
            check_labels_may_leave("data.test", next(evaluation_batches(self.test, data.batch_size)), config)
        example = first.inputs
        self.example = TensorSpec.of(example)
        # A trainer takes no batch that is larger than the example, which a small training set does not fill.
        self.evaluation = None if self.test is None else EvaluationLoader(self.test, len(example), data.workers)
        self.chain = build_checked_chain(
            config.model.factory,
            config.model.kwargs,
            training.seed,
            example,
            frozen=config.model.frozen,
            inputs_may_cross="trainer" in config.privacy.inputs_to,
        )
        self.start_digest = (
            None if training.start_from is None else load_weights(self.chain.module, training.start_from)
        )
        check_labels(training.loss, self.chain.features[0], self.chain.output, TensorSpec.of(first.labels))
        cut = config.deployment.cut or max(self.chain.first_cut, len(self.chain.blocks) // 2)
        check_cut(cut, self.chain)
        self.deployment = Deployment(
            cut=cut,
            staleness=self._staleness[0][1],
            codec=_codec("deployment.codec", deployment.codec),
            downlink_codec=_codec("deployment.downlink_codec", deployment.downlink_codec),
        )
        self._check_widths()
        device = choose_device(config.compute.device)
        prepare_device(device, deterministic=config.compute.deterministic)
        self.held = HeldBlocks(self.chain, self.recipe, device, range(cut))

    def _check_widths(self) -> None:
        """Refuse to narrow features of float64 where nobody asked for less than exact ones. Raises ConfigError."""
        wide = any(spec.dtype is torch.float64 for specs in self.chain.features[1:] for spec in specs)
        deployment, engine = self.config.deployment, self.config.engine
        for key, name in (("codec", deployment.codec), ("downlink_codec", deployment.downlink_codec)):
            if wide and _narrows_float64(name):
                raise ConfigError(
                    f"deployment.{key} is {name}, which would narrow the float64 features of {self.config.model.factory!r} to "
                    "32 bits; set it to raw, which sends them as they are, or to a codec with fewer bits"
                )
        if wide and engine.profile is not None and 32 in engine.bits:
            raise ConfigError(
                f"engine.bits holds 32, which would narrow the float64 features of {self.config.model.factory!r}; leave it out"
            )

    def close(self) -> None:
        """End the processes that read samples."""
        self.loader.close()
        if self.evaluation is not None:
            self.evaluation.close()

    def begin_with(self, deployment: Deployment) -> None:
        """Begin with another deployment than the configuration's. Raises ModelError for a cut out of range."""
        check_cut(deployment.cut, self.chain)
        self.held.hold(range(deployment.cut), {})
        self.deployment = deployment

    @property
    def largest_staleness(self) -> int:
        """The largest limit K that the run is known to come to."""
        return max(self.deployment.staleness, *(limit for _, limit in self._staleness))

    @property
    def staleness_changes(self) -> dict[int, int]:
        """The steps after the first from which on the configuration sets another limit K, and which."""
        schedule = self.config.deployment
        unit_steps = self.loader.steps_per_epoch if schedule.staleness_every == "epoch" else 1
        return {position * unit_steps: limit for position, limit in self._staleness[1:]}

    @property
    def _staleness(self) -> tuple[tuple[int, int], ...]:
        schedule = self.config.deployment.staleness
        return ((0, schedule),) if isinstance(schedule, int) else schedule


def _narrows_float64(name: str) -> bool:
    """Whether a codec that nobody would choose to lose something loses part of a float64 tensor."""
    codec, elements = codec_by_name(name), 64
    return not codec.spec.lossy and codec.encoded_bytes((elements,), torch.float64) < elements * torch.float64.itemsize


def _codec(key: str, name: str) -> str:
    try:
        return codec_by_name(name).name
    except ConfigError as unknown:
        raise ConfigError(f"{key}: {unknown}") from None
