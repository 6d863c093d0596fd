"""The configuration of the edge agent: what it trains, on which data, how, and with which trainer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from edge_agent.choice_config import ChoiceSection
from edge_agent.data_config import ORDERS, DataConfig
from edge_agent.deployment_config import DeploymentConfig, check_adaptive
from edge_agent.group_config import GroupSection, check_group
from edge_agent.improvement_config import check_followed
from edge_agent.placement_config import PlacementSection, check_workers
from edge_agent.planner_names import DEFAULT_BITS
from edge_agent.training_config import TrainingConfig
from shared.client.config import ClientTlsConfig, NamedTrainerConfig, TrainerAddressConfig
from shared.config import (
    CheckpointsConfig,
    ComputeConfig,
    Config,
    ControlConfig,
    FactoryName,
    LinkConfig,
    LogConfig,
    MetricsConfig,
    OneOf,
    Section,
    WebConfig,
)
from shared.errors import ConfigError
from shared.registry import bit_widths, codec_spec
from shared.registry.corrections import StalenessCorrection
from shared.training.recipe import against_prediction


class ModelConfig(Section):
    factory: FactoryName = "shared.model.zoo:residual_cnn"
    """Factory of the network. Both sides must be able to import it, and the trainer's operator must allow it."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the factory. They go to the trainer as JSON."""
    output: str | None = Field(default=None, examples=["logits"])
    """Entry to train on, of a network that returns a dictionary. Left out, it returns one tensor."""
    frozen: tuple[str, ...] = Field(default=(), examples=[["stem", "layers.0"]])
    """Parameters that do not learn: each name is that of a parameter, of a module above it, or a pattern as in `learns`.
    When all blocks of the edge are frozen, no error gradient comes back and the pipeline is not bounded by K."""
    learns: tuple[str, ...] = Field(default=(), examples=[["*lora_*", "classifier"]])
    """The only parameters that learn, where some are named: each name as in `frozen`, or a pattern of whole names with
    `*`, `?` or `[`."""
    frozen_mode: Literal["train", "eval"] = "train"
    """Mode of modules of which no parameter learns: with `eval` their batch-norms keep the statistics that they begin with, and
    their dropout lets everything through."""


class PrivacyConfig(Section):
    inputs_to: tuple[str, ...] = Field(default=(), examples=[["trainer"]])
    """Trainers that may see raw samples, by their names. This permits what would show them: a placement that begins there,
    labels that are the inputs themselves, as an autoencoder has, and a cut behind blocks off whose features samples can be
    read number by number, as behind an embedding or a normalisation. Such a trainer needs server.accept_inputs for the first
    and the last. Left out, such a run is refused."""
    public_inputs: tuple[str, ...] = Field(default=(), examples=[["attention_mask"]])
    """Inputs, by their names, that do not count as samples: any worker may have them, and what follows from them alone, without
    leave of either side. A mask of padding tells the length of every sample. One input at least stays private."""
    gradients_to: tuple[str, ...] = Field(default=(), examples=[["trainer"]])
    """Trainers that may own blocks whose gradients tell of raw samples or of labels, by their names: shared blocks that compute
    on raw samples, and the last block where labels stay. Who may have the samples or labels themselves need not be named. For
    blocks that compute on raw samples such a trainer needs server.accept_inputs, too. Left out, such a run is refused. Those
    that are named may also keep replicas of such blocks of other trainers."""


class UpgradeSection(Section):
    wait_seconds: NonNegativeFloat = 3600.0
    """Longest wait for a trainer that is one protocol version ahead or behind, as in a rolling upgrade. The run goes on once
    they speak the same, and else ends with code 8."""


class EngineSection(Section):
    profile: Path | None = Field(default=None, examples=["profile.json"])
    """Profile of two workers, of a chain or of three tiers, as `edge-agent profile` measured it. With it, the engine moves
    blocks and changes shares, bit widths and K while training goes on, as devices and links change. Left out, they stay as
    they are. A member of a group only begins as planned, with a cut or without one."""
    bits: tuple[Annotated[int, OneOf(bit_widths())], ...] = Field(default=DEFAULT_BITS, min_length=1)
    """Bit widths to choose from, within what the profile's min_bits allow. Fewer than 8 cost accuracy."""
    max_staleness: NonNegativeInt | None = Field(default=None, examples=[3])
    """Largest K to use. Left out, the largest that the profile was calibrated for."""
    margin: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.05
    """Part of the time per step that a change must save, its own cost included. A smaller margin would follow noise."""
    window_seconds: PositiveFloat = 60.0
    """Over how long deployments are compared. A change of the link is followed after a good part of this time,
    so a run of minutes wants less. A time shorter than the usual dips of the link leads to moves for nothing."""
    dwell_seconds: PositiveFloat = 5.0
    """Shortest time between two changes."""
    allow_edge_only: bool = True
    """True if all blocks may be put here where that is fastest. Then nothing crosses the links, so the agent probes them
    about once a minute, with up to 6 MB each way."""


class EdgeCheckpointsConfig(CheckpointsConfig):
    every_steps: PositiveInt | None = Field(default=None, examples=[500])
    """Steps between checkpoints, at which every worker writes its part. Left out, only `every_seconds` counts."""
    every_seconds: PositiveFloat = 60.0
    """Seconds between checkpoints. Before each, the batches in flight are settled, so with a large K fewer checkpoints are
    cheaper."""
    replicas: Literal[0, 1, "store"] = 0
    """Number of other workers that keep each trainer's part of a checkpoint on their disks too: with 1 the next trainer
    down the chain, for the last one the one before it, a candidate where the run is with one of several, and this device
    where a trainer is alone or its neighbour may not know what a block's weights tell. A replica costs the bytes of its
    part, on the disk and on the way there, while training goes on. "store" says that the trainers keep their checkpoints
    on one store, where each reads the parts of the others."""
    keep_finished: bool = False
    """True if a run's last checkpoint stays at every worker after its end, so that `--resume` with more `training.epochs` goes
    on. This device keeps that of the run that ended last, and trainers keep theirs for `checkpoints.forget_after_days`."""
    max_recalled_bytes: PositiveInt = 16 * 1024**3
    """Disk that features may take here where this device has all blocks and computes those that are frozen once a sample
    (`deployment.recall`): those of a whole data set, with the labels, in the session's folder. A run that would take more is
    refused."""
    stop_seconds: PositiveFloat = 20.0
    """Maximum time in which a run that is told to stop settles its batches and writes its last checkpoint."""


class OutputConfig(Section):
    directory: Path | None = Field(default=None, examples=["runs/first"])
    """Folder of the results. Left out, no results are written."""
    trace: Path | None = Field(default=None, examples=["runs/first/trace.json"])
    """File of the time line of all workers, for Perfetto, chrome://tracing or `edge-agent timeline`. It holds the
    newest 250,000 entries, which are about 30,000 steps of two workers."""
    record: bool = False
    """True if a record of all that decides the bits of the weights is written into `output.directory` while the run
    trains, some 50 bytes a step, so that `edge-agent replay` repeats it."""

    @model_validator(mode="after")
    def _a_record_has_a_folder(self) -> Self:
        if self.record and self.directory is None:
            raise ValueError("record is true, and nothing says where to: set output.directory, or give --output")
        return self


class EdgeConfig(Config):
    environment_prefix: ClassVar[str] = "EDGE_AGENT_"

    trainer: TrainerAddressConfig = Field(default_factory=TrainerAddressConfig)
    """The cloud trainer that runs blocks of the network, where there is one only."""
    trainers: tuple[NamedTrainerConfig, ...] | None = Field(
        default=None, examples=[[{"name": "gpu", "address": "gpu.example.org:50051"}]]
    )
    """Several trainers, each a table `[[trainers]]` with a name, an address and any other key of `[trainer]`, which is left
    out then. Nearest to this device first: of two trainers that are linked, the earlier one dials. Without `[placement]`
    and `engine.profile` they are candidates: the first that answers runs the blocks behind the cut. An empty list is none."""
    tls: ClientTlsConfig = Field(default_factory=ClientTlsConfig)
    """Encryption of the connection to the trainer, and the proofs of identity that it asks for."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The network."""
    data: DataConfig = Field(default_factory=DataConfig)
    """The samples, which stay here."""
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    """Permissions to see the samples, or data that tells of them."""
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    """Length and recipe of the training."""
    deployment: DeploymentConfig = Field(default_factory=DeploymentConfig)
    """Cut of the network, staleness of gradients, and codecs of tensors."""
    placement: PlacementSection = Field(default_factory=PlacementSection)
    """Blocks of each worker, where one cut does not say it. Beside the keys below there is one for each worker that has
    blocks: `edge = ["0:2", "6:"]` for this device, and `gpu = "2:6"` for the trainer of that name."""
    group: GroupSection = Field(default_factory=GroupSection)
    """Group of devices that train one model together, each on samples of its own."""
    engine: EngineSection = Field(default_factory=EngineSection)
    """Decision engine, which changes the deployment while training goes on."""
    choice: ChoiceSection = Field(default_factory=ChoiceSection)
    """Choice among several trainers, which hands the run over while training goes on."""
    compute: ComputeConfig = Field(default_factory=ComputeConfig)
    """Hardware that this side computes with."""
    link: LinkConfig = Field(default_factory=LinkConfig)
    """Transfer of tensors over the link."""
    upgrade: UpgradeSection = Field(default_factory=UpgradeSection)
    """Patience while one side is upgraded before the other."""
    checkpoints: EdgeCheckpointsConfig = Field(default_factory=EdgeCheckpointsConfig)
    """Checkpoints: the state that outlives this process, and how often it is written."""
    control: ControlConfig = Field(default_factory=ControlConfig)
    """Control: the address at which this agent is watched and steered."""
    web: WebConfig = Field(default_factory=WebConfig)
    """Page in a browser on which it is watched and steered, too."""
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    """Metrics that can be watched from outside."""
    log: LogConfig = Field(default_factory=LogConfig)
    """Log that is written to standard error."""
    output: OutputConfig = Field(default_factory=OutputConfig)
    """Files that a run leaves on disk."""

    @property
    def member(self) -> GroupSection | None:
        """The seat of this device in a group; None where it trains by itself."""
        return None if self.group.name is None else self.group

    @property
    def all_trainers(self) -> tuple[TrainerAddressConfig, ...]:
        """The trainers that are configured, nearest first."""
        return (self.trainer,) if self.trainers is None else self.trainers

    @property
    def staleness_correction(self) -> StalenessCorrection:
        """The correction of staleness, chosen where `deployment.staleness_correction` is "auto"."""
        deployment = self.deployment
        if deployment.staleness_correction != "auto":
            return deployment.staleness_correction
        is_late = max(deployment.staleness_schedule.values) > 0
        keeps_features = deployment.recall or deployment.changes is not None
        suits = not keeps_features and self.member is None
        return "prediction" if is_late and suits and self._against_prediction() is None else "none"

    @property
    def only_trainer(self) -> TrainerAddressConfig:
        """The trainer, where there is one, for what is done with one alone, as a cut is. Raises ConfigError otherwise."""
        trainers = self.all_trainers
        if len(trainers) != 1:
            raise ConfigError(
                f"one trainer is needed, and {len(trainers) or 'none'} {'are' if trainers else 'is'} configured; give one in "
                "[trainer], or say in [placement] which blocks each of them runs"
            )
        return trainers[0]

    @model_validator(mode="after")
    def _codec_can_follow_the_learning_rate(self) -> Self:
        check_adaptive(self.deployment, self.training.schedule)
        return self

    @model_validator(mode="after")
    def _trackers_have_a_folder(self) -> Self:
        if self.training.trackers and self.output.directory is None:
            raise ValueError(
                "training.trackers is set, and nothing says where to: set output.directory, or give --output"
            )
        return self

    @model_validator(mode="after")
    def _metrics_have_samples(self) -> Self:
        if self.training.metrics and self.data.test is None:
            raise ValueError(
                "training.metrics are computed of data.test, which is left out; give it, or leave them out"
            )
        return self

    @model_validator(mode="after")
    def _a_record_can_be_repeated(self) -> Self:
        if self.output.record and self.training.schedule.name == "plateau":
            raise ValueError(
                'output.record is true and training.schedule.name is "plateau", which follows evaluations, and a replay makes '
                "none; leave one of them out"
            )
        deployment, learning_rate = self.deployment, self.training.schedule
        schedules = {
            "codec": deployment.codec_schedule(learning_rate),
            "downlink_codec": deployment.downlink_codec_schedule(learning_rate),
        }
        for key, schedule in schedules.items():
            for codec in schedule.values if self.output.record else ():
                if codec_spec(codec).stochastic:
                    raise ValueError(
                        f'output.record is true and deployment.{key} comes to "{codec}", which rounds at random, so no replay '
                        "has its weights; name another codec there, or leave output.record out"
                    )
        return self

    @model_validator(mode="after")
    def _workers_fit(self) -> Self:
        if self.trainers is not None and self.trainer != TrainerAddressConfig():
            raise ValueError(
                "trainer and trainers are both set; [trainer] is the short form for one, so leave one of them out"
            )
        if self.placement.given and self.deployment.cut is not None:
            raise ValueError("deployment.cut and placement both say which blocks run where; leave one of them out")
        permitted = {"privacy.inputs_to": self.privacy.inputs_to, "privacy.gradients_to": self.privacy.gradients_to}
        precision = self.training.precision
        precise = {"training.precision": precision if isinstance(precision, dict) else ()}
        check_workers((trainer.name for trainer in self.all_trainers), self.placement, permitted, precise)
        return self

    @model_validator(mode="after")
    def _choice_is_possible(self) -> Self:
        if (policy := self.choice.policy) in (None, "fixed"):
            return self
        if len(self.all_trainers) < 2 or self.placement.given:
            raise ValueError(
                f'choice.policy is "{policy}", which chooses among several [[trainers]] without [placement]; name them, or '
                "leave it out"
            )
        if self.engine.profile is None:
            raise ValueError(
                f'choice.policy is "{policy}" and engine.profile is left out, which says what a step takes; measure one with '
                'edge-agent profile, or set choice.policy = "fixed"'
            )
        return self

    @model_validator(mode="after")
    def _the_engine_knows_one_precision(self) -> Self:
        if self.engine.profile is not None and isinstance(self.training.precision, dict):
            raise ValueError(
                "engine.profile is set and training.precision differs between workers; the engine knows the costs of one, so "
                "leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _replacement_is_possible(self) -> Self:
        if self.checkpoints.replicas and self.checkpoints.location == "none":
            raise ValueError(
                f'checkpoints.replicas is {self.checkpoints.replicas} and checkpoints.location is "none", so there is nothing '
                "to keep"
            )
        if self.checkpoints.keep_finished and self.checkpoints.location == "none":
            raise ValueError(
                'checkpoints.keep_finished is true and checkpoints.location is "none", so there is nothing to keep'
            )
        for trainer in self.all_trainers:
            if (after := trainer.replace_after_seconds) is None:
                continue
            if not self.checkpoints.replicas:
                raise ValueError(
                    "replace_after_seconds is set and checkpoints.replicas is 0, so nobody else would have the blocks of that "
                    'trainer; set checkpoints.replicas = 1, or "store" where all trainers keep them on one'
                )
            if trainer.give_up_seconds is not None and trainer.give_up_seconds <= after:
                raise ValueError(
                    f"give_up_seconds is {trainer.give_up_seconds:g} and replace_after_seconds {after:g}, so the run would end "
                    "before the trainer is replaced; make the second one smaller, or leave one out"
                )
        return self

    @model_validator(mode="after")
    def _correction_is_possible(self) -> Self:
        if self.deployment.staleness_correction == "prediction" and (why := self._against_prediction()):
            raise ValueError(f'deployment.staleness_correction is "prediction", which {why}')
        return self

    def _against_prediction(self) -> str | None:
        return against_prediction(self.training.optimizer, self.training.schedule)

    @model_validator(mode="after")
    def _features_can_be_kept(self) -> Self:
        recall, changes = self.deployment.recall, self.deployment.changes
        for sentence in self._against_kept() if recall or changes else ():
            given = "recall is true" if recall else f'changes is "{changes}"'
            raise ValueError(f"deployment.{given}, and {sentence}")
        return self

    def _against_kept(self) -> Iterator[str]:
        recall = self.deployment.recall
        if recall and self.model.frozen_mode != "eval":
            yield f'model.frozen_mode is "{self.model.frozen_mode}", with which features change; set it to "eval"'
        if self.member is not None:
            yield f"group.name is {self.group.name!r}; a group's trainers keep no features, so leave one of them out"
        if self.engine.profile is not None:
            yield "engine.profile is set; the engine does not know what such steps cost, so leave one of them out"
        if recall and self.staleness_correction != "none":
            yield "deployment.staleness_correction is set; no block learns before the features that are kept; leave it out"
        if self.data.batch_transform is not None:
            yield "data.batch_transform is set, which makes a sample another one in each epoch; leave one of them out"
        if given := [key for key in ORDERS if getattr(self.data, key) is not None]:
            yield f"data.{given[0]} is set, so a sample may come twice in an epoch; leave one of them out"
        if self.data.on_error == "skip":
            yield 'data.on_error is "skip", so a sample may be another one in each epoch; leave one of them out'
        if self.data.longest is not None:
            yield "data.longest is set; features of one length alone are kept, so leave one of them out"
        if self.output.record:
            yield "output.record is true; a run whose features are kept cannot be repeated, so leave one of them out"
        if not recall and self.checkpoints.replicas:
            yield "checkpoints.replicas is set; other trainers keep blocks, and no features, so leave one of them out"

    @model_validator(mode="after")
    def _followed_figures_are_computed(self) -> Self:
        check_followed(self)
        return self

    @model_validator(mode="after")
    def _evaluations_have_samples(self) -> Self:
        if self.training.evaluate_every_steps is not None and self.data.test is None:
            raise ValueError(
                "training.evaluate_every_steps is set and data.test is left out, so there is nothing to evaluate on; give it, "
                "or leave the other out"
            )
        return self

    @model_validator(mode="after")
    def _group_is_possible(self) -> Self:
        check_group(self)
        return self
