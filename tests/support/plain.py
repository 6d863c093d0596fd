"""The plain PyTorch loop that split training is compared with, bit for bit: one process, one module, torch's own optimizer.

It shares with the product what defines the experiment (first weights, order of samples, seeds of dropout, learning rate
of a step) and nothing of how the product computes it. `PlainEdge` does the same for late gradients.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from edge_agent.data import BatchLoader, Collate, Dataset, first_batch
from edge_agent.data.named import load_dataset
from edge_agent.data.order import load_order
from edge_agent.data.skipping import Skipping
from edge_agent.data.transform import BatchTransform
from isthmus import EdgeConfig
from shared.codec import FeedbackMode, codec_by_name, compensate, compression_error
from shared.model.build import build_model
from shared.model.chain import Chain, build_chain
from shared.model.inputs import Inputs, by_place, features_of_inputs
from shared.model.output import choose_output
from shared.model.random_state import random_state
from shared.registry import LossConfig, OptimizerConfig, codec_spec
from shared.training.recipe import Recipe
from shared.training.schedule import learning_rate, set_rates

Value = Tensor | tuple[Tensor, ...]


def plain_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """One optimizer over the whole module, as a user writes it, with the parameters of each group where they are named."""
    grouped: list[dict[str, Any]] = [{"params": []}]
    for group in config.groups:
        own = {"lr": group.learning_rate, "weight_decay": group.weight_decay}
        grouped.append({"params": [], **{key: value for key, value in own.items() if value is not None}})
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            fits = [any(fnmatchcase(name, pattern) for pattern in group.match) for group in config.groups]
            grouped[fits.index(True) + 1 if True in fits else 0]["params"].append(parameter)
    if ":" in config.name:
        named = {key: tuple(value) if isinstance(value, list) else value for key, value in config.kwargs.items()}
        return resolve_name(config.name)(grouped, lr=config.learning_rate, weight_decay=config.weight_decay, **named)
    kind, keys = {
        "sgd": (torch.optim.SGD, ("momentum", "nesterov")),
        "adam": (torch.optim.Adam, ("betas", "eps")),
        "adamw": (torch.optim.AdamW, ("betas", "eps")),
        "rmsprop": (torch.optim.RMSprop, ("alpha", "momentum", "eps")),
        "adagrad": (torch.optim.Adagrad, ("eps", "initial_accumulator_value")),
        "adafactor": (torch.optim.Adafactor, ("beta2_decay",)),
        "lion": (PlainLion, ("betas",)),
    }[config.name]
    given = {key: value for key in keys if (value := getattr(config, key)) is not None}
    return kind(grouped, lr=config.learning_rate, weight_decay=config.weight_decay, **given)


class PlainLion(torch.optim.Optimizer):
    """Lion as Algorithm 2 of its paper prints it; torch has none."""

    def __init__(self, parameters, lr, weight_decay, betas=(0.9, 0.99)):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "betas": betas})
        self._momenta = {
            parameter: torch.zeros_like(parameter) for group in self.param_groups for parameter in group["params"]
        }

    @torch.no_grad()
    def step(self):
        """One update."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is not None:
                    kept = self._momenta[weight]
                    step = torch.sign(torch.add(kept * beta1, weight.grad, alpha=1 - beta1))
                    shrunk = weight * (1 - group["lr"] * group["weight_decay"])
                    weight.copy_(torch.add(shrunk, step, alpha=-group["lr"]))
                    self._momenta[weight] = torch.add(kept * beta2, weight.grad, alpha=1 - beta2)


class PlainExperiment(NamedTuple):
    """Parts of what a configuration trains, built here and now."""

    chain: Chain
    recipe: Recipe
    dataset: Dataset
    loader: BatchLoader
    steps: int


def plain_state(config: EdgeConfig) -> dict[str, Tensor]:
    """The state dict after all steps of `config`, trained here and now."""
    chain, recipe, _, loader, steps = plain_experiment(config)
    batches = loader.iterate(0, steps)
    return plain_loop(chain, recipe, ((batch.step, batch.inputs, batch.labels) for batch in batches))


def plain_average(config: EdgeConfig) -> dict[str, Tensor]:
    """The state dict with the average of the weights over all updates of `config`, trained here and now."""
    chain, recipe, _, loader, steps = plain_experiment(config)
    batches, averages = loader.iterate(0, steps), dict[str, Tensor]()
    plain_loop(chain, recipe, ((each.step, each.inputs, each.labels) for each in batches), averages=averages)
    return averages


def plain_experiment(config: EdgeConfig) -> PlainExperiment:
    """Build what a configuration trains, as a user would."""
    data, training = config.data, config.training
    dataset = load_dataset(data.train.factory, data.train.kwargs)
    collate = None if data.collate is None else Collate(data.collate, data.longest)
    transform = None if data.batch_transform is None else BatchTransform(data.batch_transform)
    skipping = Skipping(training.seed, data.max_skipped) if data.on_error == "skip" else None
    order = load_order(data.sampler, data.sample_weights, data.batch_sampler, dataset, data.batch_size, training.seed)
    loader = BatchLoader(
        dataset,
        data.batch_size,
        training.seed,
        data.drop_last,
        0,
        collate,
        skipping=skipping,
        order=order,
        transform=transform,
        steps_per_epoch=data.steps_per_epoch,
    )
    total = training.epochs * loader.steps_per_epoch
    recipe = Recipe(
        optimizer=training.optimizer,
        schedule=training.schedule,
        loss=training.loss,
        seed=training.seed,
        precision=training.precision,
        accumulate_batches=training.accumulate_batches,
        mean=training.mean,
        ema=training.ema,
        staleness_correction=config.deployment.staleness_correction,
        steps_per_epoch=loader.steps_per_epoch,
        total_steps=total,
    )
    module = build_model(config.model.factory, config.model.kwargs, training.seed).train()
    if training.start_from is not None:
        load_what_fits(module, training.start_from.path)
    if config.model.output is not None:
        choose_output(module, config.model.output)
    learns = config.model.learns
    for name, parameter in module.named_parameters():
        is_frozen = f"{name}.".startswith(tuple(f"{frozen}." for frozen in config.model.frozen))
        if is_frozen or (learns and not any(fnmatchcase(name, each) or name.startswith(f"{each}.") for each in learns)):
            parameter.requires_grad_(False)
    example = first_batch(dataset, data.batch_size, collate, skipping, transform).inputs
    steps = min(total, training.max_steps or total)
    chain = build_chain(module, example)
    if config.model.frozen_mode == "eval":
        for name in config.model.frozen:
            module.get_submodule(name).eval()
    return PlainExperiment(chain, recipe, dataset, loader, steps - steps % training.accumulate_batches)


def load_what_fits(module: nn.Module, path: Path) -> None:
    """Load first weights as a user does who wants another head."""
    given = torch.load(path, weights_only=True) if path.suffix == ".pth" else load_file(path)
    own = module.state_dict()
    fitting = {name: value for name, value in given.items() if name in own and value.shape == own[name].shape}
    module.load_state_dict(fitting, strict=False)


def plain_loop(
    chain: Chain,
    recipe: Recipe,
    batches: Iterable[tuple[int, Inputs, Tensor]],
    done: Callable[[int, float], object] = lambda _step, _loss: None,
    figure: Callable[[int], float | None] = lambda _steps: None,
    rates: list[float] | None = None,
    averages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Train the module of a chain in place, as a user writes it; returns its state dict.

    batches: the step, the inputs and the labels of each. done: called after each step, with its loss. figure: gives the figure
    of the evaluation after so many steps, which a plateau follows; None without one. rates: gets the rate of each step.
    averages: gets the state dict of the module with the average of its weights, where the recipe has one. Blocks are there to
    clip by, and to draw random numbers by.
    """
    module, blocks = chain.module, chain.blocks
    optimizer = plain_optimizer(module, recipe.optimizer)
    random = any(block.draws_random for block in blocks)
    clipped = [list(block.named_parameters().values()) for block in blocks]
    if recipe.optimizer.clip == "model":
        clipped = [list(module.parameters())]
    scaler, plateau, average = plain_scaler(recipe), plain_plateau(optimizer, recipe), plain_ema(module, recipe)
    for (step, inputs, labels), counted in plain_counts(recipe, batches):
        given = features_of_inputs(inputs)
        with plain_precision(recipe):
            output = (
                plain_forward([block.module for block in blocks], recipe.seed, step, given)
                if random
                else by_place(module, chain.input_names)(*given)
            )
            loss = plain_loss(recipe.loss, output, labels, "mean" if counted is None else "sum")
        scaler.scale(loss / (recipe.accumulate_batches if counted is None else counted.update)).backward()
        plain_update(clipped, optimizer, recipe, step, scaler)
        if average is not None and (step + 1) % recipe.accumulate_batches == 0:
            average.update_parameters(module)
        if rates is not None:
            rates.append(optimizer.param_groups[0]["lr"])
        done(step, float(loss.detach() if counted is None else loss.detach() / counted.batch))
        if plateau is not None and (value := figure(step + 1)) is not None:
            plateau.step(value)
    if average is not None and averages is not None:
        averages |= {name: tensor.clone() for name, tensor in average.module.state_dict().items()}
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def plain_ema(module: nn.Module, recipe: Recipe) -> torch.optim.swa_utils.AveragedModel | None:
    """Torch's own average of the weights, where there is one."""
    if recipe.ema is None:
        return None
    follow = torch.optim.swa_utils.get_ema_multi_avg_fn(recipe.ema.decay)
    return torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=follow)


def plain_plateau(
    optimizer: torch.optim.Optimizer, recipe: Recipe
) -> torch.optim.lr_scheduler.ReduceLROnPlateau | None:
    """Torch's own, where the schedule is that."""
    schedule = recipe.schedule
    if schedule.name != "plateau":
        return None
    return torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        schedule.mode or ("min" if schedule.metric == "loss" else "max"),
        schedule.factor,
        schedule.patience,
        schedule.threshold,
        cooldown=schedule.cooldown,
        min_lr=schedule.min,
    )


class PlainCounts(NamedTuple):
    """The labels that count."""

    batch: float
    update: float
    """Labels of all batches of the update."""


def plain_counts(
    recipe: Recipe, batches: Iterable[tuple[int, Inputs, Tensor]]
) -> Iterator[tuple[tuple[int, Inputs, Tensor], PlainCounts | None]]:
    """The batches with their counts where the mean is that of tokens: an update is read first, as Transformers does."""
    update: list[tuple[int, Inputs, Tensor]] = []
    for batch in batches:
        if recipe.mean == "batch":
            yield batch, None
            continue
        update.append(batch)
        if (batch[0] + 1) % recipe.accumulate_batches == 0:
            counts = [plain_count(recipe.loss, labels) for _, _, labels in update]
            yield from ((each, PlainCounts(own, sum(counts))) for each, own in zip(update, counts, strict=True))
            update = []
    counts = [plain_count(recipe.loss, labels) for _, _, labels in update]
    yield from ((each, PlainCounts(own, sum(counts))) for each, own in zip(update, counts, strict=True))


def plain_count(loss: LossConfig, labels: Tensor) -> float:
    """The number by which torch divides the sum of a batch's losses."""
    if labels.is_floating_point():
        return labels.numel()
    there = labels[labels != -100]
    return float(torch.tensor(loss.kwargs["weight"]).double()[there].sum()) if "weight" in loss.kwargs else len(there)


def plain_loss(loss: LossConfig, output: Value, labels: Tensor, reduction: str = "mean") -> Tensor:
    """The loss of a batch, as a user writes it; or the user's own."""
    summing = {} if reduction == "mean" else {"reduction": reduction}
    given = summing | {
        key: torch.tensor(value) if isinstance(value, list) else value for key, value in loss.kwargs.items()
    }
    if ":" in loss.name:
        return resolve_name(loss.name)(output, labels, **given)
    if loss.name == "token_cross_entropy":
        return nn.functional.cross_entropy(output.view(-1, output.shape[-1]), labels.view(-1), **given)
    plain = {"mse": "mse_loss", "bce_with_logits": "binary_cross_entropy_with_logits"}
    return getattr(nn.functional, plain.get(loss.name, loss.name))(output, labels, **given)


class PlainEdge:
    """The first blocks of a module with gradients that come late: deep copies and autograd, nothing else.

    Replay (paper 000, Eq. 3) is the gradient at the weights of now; stash is that at the weights of then. A forward may run on
    weights that are predicted for the time of its update.
    """

    def __init__(self, blocks: Iterable[nn.Module], recipe: Recipe, policy: str) -> None:
        self.blocks = nn.ModuleList(blocks).train()
        self._recipe = recipe
        self._policy = policy
        self._optimizer = plain_optimizer(self.blocks, recipe.optimizer)
        self._then: dict[int, tuple[Tensor, nn.ModuleList | None]] = {}

    def forward(self, step: int, inputs: Tensor, *, weights_stay: bool) -> Value:
        """The feature of a batch. weights_stay: the weights change no more before this batch's own update."""
        with self._predicted(list(self._then)):
            self._then[step] = inputs, copy.deepcopy(self.blocks) if weights_stay or self._policy == "stash" else None
            with torch.no_grad():
                return plain_forward(self.blocks, self._recipe.seed, step, inputs.clone())

    @contextmanager
    def _predicted(self, pending: list[int]) -> Iterator[None]:
        """Have the weights to which the updates of these steps bring them if no further gradient comes."""
        updating = [step for step in pending if self._recipe.updates_after(step)]
        if self._recipe.staleness_correction == "none" or not updating:
            yield
            return
        before = [parameter.detach().clone() for parameter in self.blocks.parameters()]
        with torch.no_grad():
            for place, group in enumerate(self._optimizer.param_groups):
                for parameter in group["params"]:
                    self._go_on(parameter, [learning_rate(self._recipe, step, place) for step in updating])
        yield
        with torch.no_grad():
            for parameter, value in zip(self.blocks.parameters(), before, strict=True):
                parameter.copy_(value)

    def _go_on(self, parameter: Tensor, rates: list[float]) -> None:
        if not (kept := self._optimizer.state.get(parameter)):
            return
        config = self._recipe.optimizer
        if config.name in ("adam", "adamw"):
            beta1, beta2 = config.betas or (0.9, 0.999)
            count, eps = float(kept["step"]), config.eps or 1e-8
            way = sum(rate * beta1**later for later, rate in enumerate(rates, 1))
            divisor = kept["exp_avg_sq"].sqrt() / (1 - beta2**count) ** 0.5 + eps
            parameter.addcdiv_(kept["exp_avg"], divisor, value=-way / (1 - beta1**count))
        else:
            way = sum(rate * config.momentum**later for later, rate in enumerate(rates, 1))
            parameter.add_(kept["momentum_buffer"], alpha=-way * (config.momentum if config.nesterov else 1.0))

    def backward(self, step: int, gradient: Tensor | tuple[Tensor | None, ...]) -> None:
        """Apply the error gradient of a batch; of a tuple of tensors a tuple, None where there is none."""
        inputs, then = self._then.pop(step)
        source = copy.deepcopy(self.blocks) if then is None else then
        outputs = tupled(plain_forward(source, self._recipe.seed, step, inputs.clone()))
        gradients = gradient if isinstance(gradient, tuple) else (gradient,)
        found = [pair for pair in zip(outputs, gradients, strict=True) if pair[1] is not None]
        found = [(output, at_output) for output, at_output in found if output.requires_grad]
        if found:
            torch.autograd.backward([output for output, _ in found], [at_output for _, at_output in found])
        for ours, theirs in zip(self.blocks.parameters(), source.parameters(), strict=True):
            ours.grad = theirs.grad if ours.grad is None or theirs.grad is None else ours.grad + theirs.grad
        plain_update([block.parameters() for block in self.blocks], self._optimizer, self._recipe, step)


class Crossing(Protocol):
    """The way of a batch over the cut: a Deployment, or a Scheme."""

    staleness: int
    codec: str
    downlink_codec: str


def steady_order(first_step: int, stop_step: int, staleness: int) -> Iterator[tuple[str, int]]:
    """The order of an edge whose gradients are each exactly `staleness` steps late, as far as there are steps to wait for."""
    settled = first_step
    for step in range(first_step, stop_step):
        if step - settled > staleness:
            yield "backward", settled
            settled += 1
        yield "forward", step
    for step in range(settled, stop_step):
        yield "backward", step


def plain_split(
    blocks: Sequence[nn.Module],
    cut: int,
    recipe: Recipe,
    policy: str,
    feedback: FeedbackMode,
    order: Iterable[tuple[str, int]],
    crossing: Callable[[int], Crossing],
    samples: Callable[[int], tuple[Tensor, Tensor]],
    received: Callable[[int, Tensor], Tensor] | None = None,
) -> None:
    """Train both sides of a cut in this order of the edge's forwards and backwards, one after the other.

    crossing, samples: of each step. Every float that crosses goes through codecs and is compensated by itself, integers go as
    they are and have no gradient. received: what is received of a step's feature, where not the codec alone decides it.
    """
    edge, cloud = PlainEdge(blocks[:cut], recipe, policy), nn.ModuleList(blocks[cut:]).train()
    optimizer = plain_optimizer(cloud, recipe.optimizer) if cloud else None
    waiting: dict[int, tuple[Tensor | None, ...]] = {}
    for what, step in order:
        if what == "backward":
            edge.backward(step, waiting.pop(step))
            continue
        how, (inputs, labels) = crossing(step), samples(step)
        up, down = codec_by_name(how.codec), codec_by_name(how.downlink_codec)
        features = tupled(edge.forward(step, inputs, weights_stay=how.staleness == 0))
        arrived = tuple(
            (up.decode(up.encode(feature)).clone() if received is None else received(step, feature)).requires_grad_()
            if feature.is_floating_point()
            else feature
            for feature in features
        )
        (output,) = tupled(plain_forward(cloud, recipe.seed, step, tuple(each.clone() for each in arrived), first=cut))
        nn.functional.cross_entropy(output, labels).backward()
        if optimizer is not None:
            plain_update([block.parameters() for block in cloud], optimizer, recipe, step)
        gradients: list[Tensor | None] = []
        for feature, decoded in zip(features, arrived, strict=True):
            gradient = None if decoded.grad is None else down.decode(down.encode(decoded.grad))
            if gradient is not None and codec_spec(up.name).lossy:
                error = compression_error(decoded.detach().clone(), feature)
                gradient = compensate(gradient, error, len(labels), feedback)
            gradients.append(gradient)
        waiting[step] = tuple(gradients)


def tupled(value: Value) -> tuple[Tensor, ...]:
    """One tensor as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def plain_forward(blocks: Iterable[nn.Module], seed: int, step: int, value: Value, first: int = 0) -> Value:
    """Blocks from number `first` on, each with its own random numbers. A tuple is a block's arguments."""
    for index, block in enumerate(blocks, first):
        with random_state(seed, step, index):
            value = block(*value) if isinstance(value, tuple) else block(value)
    return value


def plain_precision(recipe: Recipe) -> torch.autocast:
    """Autocast in the precision of a recipe, as a user writes it."""
    dtype = torch.float16 if recipe.precision == "fp16" else torch.bfloat16
    return torch.autocast("cpu", dtype, enabled=recipe.precision != "fp32")


def plain_scaler(recipe: Recipe) -> torch.amp.GradScaler:
    """Torch's own scale of the loss, which is none but in float16."""
    return torch.amp.GradScaler("cpu", enabled=recipe.is_scaled)


def plain_update(
    blocks: Iterable[Iterable[nn.Parameter]],
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    step: int,
    scaler: torch.amp.GradScaler | None = None,
) -> None:
    """Clip the parameters of each block, step, and drop the gradients, unless more batches belong to the update."""
    if (step + 1) % recipe.accumulate_batches:
        return
    if scaler is not None:
        scaler.unscale_(optimizer)
    if recipe.optimizer.clip_norm is not None:
        for parameters in blocks:
            torch.nn.utils.clip_grad_norm_(list(parameters), recipe.optimizer.clip_norm)
    if recipe.schedule.name != "plateau":  # whose rates `plain_plateau` has set
        set_rates(optimizer.param_groups, recipe, step)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()


def assert_same_bits(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> None:
    """Every parameter and buffer is there and equal, bit for bit."""
    assert expected.keys() == actual.keys()
    different = [name for name in expected if not torch.equal(expected[name], actual[name])]
    assert not different, f"differ: {different}"
