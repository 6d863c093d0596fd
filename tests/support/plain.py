"""The plain PyTorch loop that split training is compared with, bit for bit: one process, one module, torch's own optimizer.

It shares with the product what defines the experiment (first weights, order of samples, seeds of dropout, learning rate
of a step) and nothing of how the product computes it. `plain_late` does the same for late gradients.
"""

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from edge_agent.data import BatchLoader, Collate, Dataset, first_batch
from edge_agent.data.named import load_dataset
from edge_agent.data.order import load_order
from edge_agent.data.skipping import Skipping
from edge_agent.data.transform import BatchTransform
from isthmus import EdgeConfig
from shared.model.build import build_model, choose_output
from shared.model.chain import Chain, build_chain
from shared.model.inputs import Inputs, by_place, features_of_inputs
from shared.model.random_state import random_state
from shared.registry import LossConfig, OptimizerConfig
from shared.training.recipe import Recipe
from shared.training.schedule import set_rates

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
        staleness_correction=config.staleness_correction,
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
