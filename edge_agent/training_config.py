"""The keys of a training: its length, what it begins with, and the recipe by which weights follow samples."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from edge_agent.callback_config import MOST_CALLBACKS, CallbackConfig, TrackerConfig
from edge_agent.improvement_config import EarlyStopConfig, FollowedFigure
from shared.config import Section, ShortSection
from shared.registry import LossConfig, MetricConfig, OptimizerConfig, Precisions
from shared.registry.metrics import MOST_METRICS, check_distinct
from shared.training.recipe import EmaConfig, Mean, ScheduleConfig


class StartFromConfig(ShortSection):
    short_key: ClassVar[str] = "path"

    path: Path = Field(strict=False)
    """File of the weights, index of its shards, or folder that has either."""
    key: str | None = None
    """Entry of a checkpoint of torch.save that is the state dict, as "ema". Left out, the first of state_dict,
    model_state_dict and model."""
    allow: tuple[str, ...] = Field(default=(), strict=False)
    """Tensors that may be missing, too many, or of another shape or type: each name as in `model.learns`."""
    widen: bool = False
    """True if tensors may have a type of fewer bits than the model's, whose values it holds as they are."""


class TrainingConfig(Section):
    epochs: PositiveInt = 10
    """Number of times that each sample is trained on."""
    max_steps: PositiveInt | None = Field(default=None, examples=[1000])
    """Stops earlier, after this many steps. It does not shorten the schedule."""
    seed: int = 0
    """Decides the first weights, the order of the samples, augmentation and dropout."""
    start_from: StartFromConfig | None = Field(
        default=None,
        examples=["runs/first/model.safetensors"],
        json_schema_extra={
            "allowed": 'a path, or a table as { path = "resnet.pth", allow = ["head.*"], widen = true }'
        },
    )
    """Weights to begin with: a safetensors file or one of torch.save with the model's state dict, an index of shards, or a
    folder with either. Prefixes of torch.compile, and the one before the model's names in the file, as of DataParallel or
    Lightning, do not count; tensors without that one, as of metrics, are left out. Tied weights may stand under one name, and
    buffers that the state dict leaves out may be there. Of the tensors that `allow` names, as in `model.learns`, those that do
    not fit come from the seed. With `widen` a file in 16 bits fits a model in 32. The optimizer begins with empty state. Left
    out, all weights are drawn from the seed."""
    precision: Precisions = Field(default="fp32", examples=[{"gpu": "bf16"}])
    """Precision of forward passes and of the loss. "fp32" is that of the weights, whatever they are; "bf16" and "fp16" compute
    in bfloat16 or float16 where torch's autocast finds it safe, so most features have half the bytes. Weights stay as they are.
    With "fp16" the loss is scaled as by torch's GradScaler, and where a gradient overflows, the update is skipped. A table has
    one for each worker, as { edge = "fp32", gpu = "bf16" }; a worker that it does not name has "fp32"."""
    accumulate_batches: PositiveInt = 1
    """Batches of one update, which goes by the mean that `mean` says. Steps, K and schedules count batches; an update has the
    learning rate of its last one. Batches at the end that make no whole update are left out."""
    mean: Mean = "batch"
    """Unit that counts alike in an update: "batch", each of its batches, as in a loop that divides by their number; "token",
    each label that the loss does not leave out, so that the gradient is that of one larger batch, as Transformers has it. For
    "token" the batches of an update are read before its first one begins. A loss of your own has to take `reduction="sum"`;
    its first tensor of labels is counted, without those that are -100. Members of a group are weighed in the same unit."""
    checkpoint_activations: bool = False
    """Keep only the inputs of each block for its backward, which computes the block's forward again: less memory for more
    computing, with the same results."""
    metrics: tuple[MetricConfig, ...] = Field(
        default=(), max_length=MOST_METRICS, examples=[["top5", {"name": "my_metrics:Recall", "kwargs": {"of": 3}}]]
    )
    """Metrics of the evaluations beside the loss: names, or tables with a name, kwargs and an alias, under which the value is
    shown. A user's own is a function of the output and the labels of a batch that returns its mean, or a class with the
    methods update, state, merge and value, or one of torchmetrics. The trainer's operator must allow it too."""
    evaluate_every_epochs: NonNegativeInt = 1
    """Epochs between evaluations. 0 evaluates at the end only, and after `evaluate_every_steps`."""
    evaluate_every_steps: PositiveInt | None = Field(default=None, examples=[500])
    """Steps between evaluations, beside those after epochs."""
    early_stop: EarlyStopConfig | None = Field(
        default=None, examples=[{"metric": "loss", "mode": "min", "patience": 3}]
    )
    """End of the run before `epochs`: after `patience` (3) evaluations in a row whose `metric`, "loss", "accuracy" or one of
    `metrics`, was not better by more than `min_delta` (0) than the best one. `mode` says which is better, "min" or "max"; left
    out, the smaller loss or the larger accuracy. Left out itself, all steps are done. In a group, the first member whose
    evaluations say so ends the run of all."""
    keep_best: FollowedFigure | None = Field(default=None, examples=[{"metric": "loss", "mode": "min"}])
    """Figure by which the weights of the best evaluation are kept too, as `best.safetensors`; `metric` and `mode` are as for
    `early_stop`. At each evaluation that is the best so far, the weights of the trainers' blocks come to this device."""
    callbacks: tuple[CallbackConfig, ...] = Field(
        default=(), max_length=MOST_CALLBACKS, examples=[["mine:alarm", {"name": "mine:Plot", "kwargs": {"every": 5}}]]
    )
    """Functions or classes of your own that make callbacks, each called with every event of the run (`isthmus.Evaluated` and
    such) and with the run, of which it may ask for the end or a checkpoint. Each has a thread of its own, for which no step
    waits: one that is too slow misses events of steps, and one that raises is left out, which the log says."""
    trackers: tuple[TrackerConfig, ...] = Field(
        default=(),
        max_length=MOST_CALLBACKS,
        examples=[["tensorboard", {"name": "wandb", "kwargs": {"project": "mine"}}]],
    )
    """Trackers that keep the rows of the history and the loss of every tenth step, as callbacks: "tensorboard" in
    `output.directory`/tensorboard, "mlflow" at its `tracking_uri`, or in `output.directory`/mlflow.db, and "wandb" (Weights &
    Biases), offline in `output.directory`/wandb. Further `kwargs` are those of SummaryWriter, of MLflow's create_experiment
    and of wandb.init. The package of each is an extra of Isthmus."""
    ema: EmaConfig | None = Field(default=None, examples=[{"decay": 0.999}])
    """Average of the weights over the updates, as torch's AveragedModel with get_ema_multi_avg_fn: `ema.safetensors` beside the
    model. Buffers are the model's. Evaluations, `early_stop` and `keep_best` go by the weights themselves."""
    on_nan: Literal["stop", "warn"] = "stop"
    """Reaction to a loss of a step that is NaN or infinite. "stop" ends the run with exit code 16 and keeps the last
    good weights; "warn" says it once in the log and goes on."""
    loss: LossConfig = Field(default_factory=LossConfig)
    """Loss and its arguments; a name alone, as `loss = "mse"` in `[training]`, is one without arguments."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """Optimizer: the rule by which weights follow gradients. Each block has its own state, on whichever side it is."""
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    """Schedule of the learning rate over the steps."""

    @model_validator(mode="after")
    def _metrics_are_distinct(self) -> Self:
        check_distinct(self.metrics)
        return self
