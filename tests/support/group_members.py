"""Members of a group of devices, and the loop over micro-batches that they are compared with, bit for bit."""

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edge_agent.experiment.experiment import Experiment
from isthmus import EdgeConfig
from shared.codec import codec_by_name
from shared.execution.block_slices import Slices
from shared.execution.in_process_session import InProcessSession
from shared.model.chain import Chain
from shared.model.random_state import random_state
from shared.placement import BlockSlice, Cargo, Placement, Route, Rows, Source, Tile
from shared.training.recipe import Recipe
from shared.training.schedule import set_rates
from shared.training.slices import ParameterRange
from tests.support.placed import batch_of, chain_of
from tests.support.plain import (
    load_what_fits,
    plain_count,
    plain_ema,
    plain_experiment,
    plain_loss,
    plain_optimizer,
    plain_plateau,
)
from tests.support.plain_history import plain_evaluation
from tests.support.samples import quickly

SAMPLES, STEPS = 4, 5
"""Samples of a member's batch, and steps."""
TookPart = Callable[[int, BlockSlice], Sequence[int]]
"""The ranks whose gradients are in the update of a slice, by step and slice."""
HadAt = Callable[[int, int, BlockSlice], int]
"""The step whose first weights of a slice a rank has as it computes, by rank, step and slice."""
Ranges = dict[str, list[tuple[BlockSlice, ParameterRange]]]
"""The ranges of each parameter that learns, with their slices."""


def copies(
    blocks: int, staleness: int = 0, trainers: Sequence[str] = ("near",), up: str = "raw", down: str = "raw"
) -> Placement:
    """Return a member's placement: the device runs all, and the trainers own all, in turns.

    up: codec of gradients. down: of what members lack of weights.
    """
    whole = Rows(0, SAMPLES)
    owners = {block: trainers[block % len(trainers)] for block in range(blocks)}
    tiles = (Tile("edge", 0, blocks, whole),)
    codecs = {Route("edge", trainer, Cargo.WEIGHT_GRADIENT): up for trainer in trainers}
    codecs |= {Route(trainer, "edge", Cargo.WEIGHTS): down for trainer in trainers}
    sources = (Source("edge", whole),)
    return Placement(0, blocks, SAMPLES, ("edge", *trainers), tiles, sources, owners, None, staleness, codecs)


def codec_down(placement: Placement) -> str:
    """Return the codec of what members lack of weights."""
    return next((name for route, name in placement.codecs.items() if route.cargo is Cargo.WEIGHTS), "raw")


def owned_by(trainer: str, placement: Placement) -> list[int]:
    """List the blocks that a trainer owns."""
    return [block for block, owner in placement.owners.items() if owner == trainer]


def with_a_cut(blocks: int, staleness: int = 0, down: str = "raw") -> Placement:
    """Return a member's placement in which the trainer runs the last blocks, too. down: see `copies`."""
    whole = Rows(0, SAMPLES)
    owners = dict.fromkeys(range(blocks), "near")
    tiles = (Tile("edge", 0, 2, whole), Tile("near", 2, blocks, whole))
    codecs, sources = {Route("near", "edge", Cargo.WEIGHTS): down}, (Source("edge", whole),)
    return Placement(0, blocks, SAMPLES, ("edge", "near"), tiles, sources, owners, None, staleness, codecs)


def batches(
    rank: int, stop: int = STEPS, first: int = 0, short: Collection[int] = ()
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a rank; those of `short` steps have fewer samples the higher the rank is."""
    for step in range(first, stop):
        inputs, labels = batch_of(100 * rank + step, SAMPLES)
        count = SAMPLES - rank - 1 if step in short else SAMPLES
        yield inputs[:count], labels[:count]


Lower = Callable[[int, Chain, torch.optim.Optimizer], None]
"""Lowering of the rates of an optimizer for a step, by the weights with which that begins."""
Ends = Callable[[int, Chain], bool]
"""Tells whether training ends before a step, by the weights with which that would begin."""


class PlainCodecs:
    """The codecs of a loop, each with what it has left."""

    def __init__(
        self,
        up: str = "raw",
        lost: Collection[tuple[int, int]] = (),
        down: str = "raw",
        had_at: HadAt = lambda _rank, step, _one: step,
    ) -> None:
        """up: of gradients. lost: ranks, each with a step before which what its codec has left is lost.

        down: of what members lack of weights. had_at: matters of ranks that are left out of steps, because what the codec
        leaves of a gradient goes with the next one also where the gradient comes too late to count.
        """
        self._up, self._down = codec_by_name(up), codec_by_name(down)
        self._lost = lost
        self.had_at = had_at
        self._left: dict[tuple[int, ParameterRange], Tensor] = {}

    def begin(self, rank: int, step: int) -> None:
        """Lose what a rank loses before a step."""
        if (rank, step) in self._lost:
            self._left = {key: left for key, left in self._left.items() if key[0] != rank}

    def received(self, rank: int, each: ParameterRange, gradient: Tensor) -> Tensor:
        """Return the gradient of a range as the group gets it."""
        if not self._up.spec.lossy:
            return gradient
        wanted = gradient + self._left.get((rank, each), 0.0)
        arrived = self._up.decode(self._up.encode(wanted))
        self._left[rank, each] = wanted - arrived
        return arrived

    def had(self, exact: Tensor, before: Tensor) -> Tensor:
        """Return a weight as members have it after an update. before: the same, before it."""
        if self._down.spec.name == "raw":
            return exact
        return before + self._down.decode(self._down.encode(exact - before))


def micro_batches(
    module: nn.Module,
    told: Recipe,
    size: int,
    *,
    steps: int = STEPS,
    short: Collection[int] = (),
    took_part: TookPart | None = None,
    codecs: PlainCodecs | None = None,
) -> dict[str, Tensor]:
    """Train a copy of a module on the batches of so many ranks; see `accumulated`."""
    members = [batches(rank, steps, short=short) for rank in range(size)]
    return accumulated(chain_of(copy.deepcopy(module)), told, members, SAMPLES, took_part, codecs)


def accumulated(
    chain: Chain,
    told: Recipe,
    members: Sequence[Iterator[tuple[Any, Tensor]]],
    samples: int,
    took_part: TookPart | None = None,
    codecs: PlainCodecs | None = None,
    lower: Lower = lambda _step, _chain, _optimizer: None,
    ends: Ends = lambda _step, _chain: False,
    averages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Train the module of a chain as a user accumulates micro-batches by hand, in the order of ranks; return its state.

    members: inputs and labels of each step, by rank. samples: of a whole batch of one member. took_part: all ranks if left out.
    codecs: none if left out. lower: called before each update. ends: asked before each step. averages: as in `plain_loop`.
    """
    codecs = codecs or PlainCodecs()
    slices = Slices(chain, told, merged=True)
    numbered = [one for block in chain.blocks for one in slices.numbered(block.index)]
    ranges: Ranges = {}
    for one in numbered:
        for each in slices[one].ranges:
            ranges.setdefault(each.name, []).append((one, each))
    module = chain.module.train()
    optimizer = plain_optimizer(module, told.optimizer)
    exact, average = _weights(module), plain_ema(module, told)
    history: list[dict[str, Tensor]] = []
    waiting: list[list[tuple[int, Any, Tensor]]] = [[] for _ in members]
    for step, whole in enumerate(zip(*members, strict=True)):
        if ends(step, chain):
            break
        history.append(_weights(module))
        ranks_of = {one: range(len(members)) if took_part is None else took_part(step, one) for one in numbered}
        counting = [plain_count(told.loss, each) if told.mean == "token" else len(each) for _, each in whole]
        counted = {
            one: sum(count for rank, count in enumerate(counting) if rank in ranks) or 1
            for one, ranks in ranks_of.items()
        }
        summed: dict[ParameterRange, Tensor] = {}
        for rank, batch in enumerate(whole):
            waiting[rank].append((step, *batch))
            if not any(rank in ranks for ranks in ranks_of.values()):
                continue  # once it counts again, all weights are known that it has had
            for at, inputs, labels in waiting[rank]:
                _put(module, _had_by(codecs.had_at, rank, at, history, ranges))
                codecs.begin(rank, at)
                value = inputs
                for block in chain.blocks:
                    first = (rank * samples,) if rank else ()
                    with random_state(told.seed, at, block.index, *first):
                        value = block.module(value)
                if told.mean == "token":
                    (plain_loss(told.loss, value, labels, "sum") / (plain_count(told.loss, labels) or 1)).backward()
                else:
                    plain_loss(told.loss, value, labels).backward()
                for name, parameter in module.named_parameters():
                    for one, each in ranges.get(name, ()) if parameter.grad is not None else ():
                        received = codecs.received(rank, each, each.of(parameter.grad))
                        if at == step and rank in ranks_of[one]:
                            share = received * (counting[rank] / counted[one])
                            summed[each] = summed[each] + share if each in summed else share
                    parameter.grad = None
            waiting[rank].clear()
        for name, parameter in module.named_parameters():
            parts = [summed[each] for _, each in ranges.get(name, ()) if each in summed]
            parameter.grad = torch.cat([part.reshape(-1) for part in parts]).view(parameter.shape) if parts else None
        if (norm := told.optimizer.clip_norm) is not None:
            everything = list(module.parameters())
            each = [list(block.named_parameters().values()) for block in chain.blocks]
            for parameters in [everything] if told.optimizer.clip == "model" else each:
                nn.utils.clip_grad_norm_(parameters, norm, foreach=False)
        set_rates(optimizer.param_groups, told, step)
        lower(step, chain, optimizer)
        _put(module, exact)
        optimizer.step()
        optimizer.zero_grad()
        if average is not None:
            average.update_parameters(module)
        exact = _weights(module)
        had = history[step]
        _put(module, {name: _had(codecs, ranges.get(name, ()), exact[name], had[name]) for name in exact})
    if average is not None and averages is not None:
        averages |= {name: tensor.clone() for name, tensor in average.module.state_dict().items()}
    return module.state_dict()


def _had_by(
    had_at: HadAt, rank: int, step: int, history: Sequence[Mapping[str, Tensor]], ranges: Ranges
) -> dict[str, Tensor]:
    """Return the weights that a rank has as it computes a step, range by range. history: the first weights of each step."""
    return {
        name: _of_ranges([each.of(history[had_at(rank, step, one)][name]) for one, each in ranges.get(name, ())], value)
        for name, value in history[step].items()
    }


def _had(
    codecs: PlainCodecs, ranges: Sequence[tuple[BlockSlice, ParameterRange]], exact: Tensor, before: Tensor
) -> Tensor:
    """Return a parameter as members have it after an update, range by range."""
    return _of_ranges([codecs.had(each.of(exact), each.of(before)) for _, each in ranges], exact)


def _of_ranges(parts: Sequence[Tensor], whole: Tensor) -> Tensor:
    """Return a parameter of its ranges. whole: of the same shape, which is returned where there are none."""
    return torch.cat([part.reshape(-1) for part in parts]).view(whole.shape) if parts else whole


def _weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def _put(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weights[name])


@quickly()
def group_state(
    configs: Sequence[EdgeConfig],
    took_part: TookPart | None = None,
    codecs: PlainCodecs | None = None,
    averages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return the state after all steps of a group's members, by rank, trained here and now as one loop; see `accumulated`."""
    first = Experiment(configs[0])
    members = []
    for config in configs:
        loader = Experiment(config).loader
        members.append((batch.inputs, batch.labels) for batch in loader.iterate(0, first.steps))
    chain = first.built_again()
    if (start := first.config.training.start_from) is not None:
        load_what_fits(chain.module, start.path)
    follows = plain_plateaus(configs), plain_early_stops(configs)
    return accumulated(chain, first.recipe, members, first.batch_size, took_part, codecs, *follows, averages)


def plain_early_stops(configs: Sequence[EdgeConfig]) -> Ends:
    """Return what ends training once the evaluations of any member, of its own test set, are no better for too long."""
    stops = [config.training.early_stop for config in configs]
    evaluated = [Experiment(config).evaluates_at for config in configs]
    plain = [plain_experiment(config) for config in configs]
    best, waited = [math.inf] * len(configs), [0] * len(configs)

    def ends(step: int, chain: Chain) -> bool:
        for rank, (config, stop) in enumerate(zip(configs, stops, strict=True)):
            if stop is None or not step or not evaluated[rank](step):
                continue
            loss, accuracy = plain_evaluation(config, plain[rank]._replace(chain=chain))
            value = loss if stop.metric == "loss" else -accuracy
            is_better = value < best[rank] - stop.min_delta
            best[rank], waited[rank] = (value, 0) if is_better else (best[rank], waited[rank] + 1)
        return any(stop and count >= stop.patience for stop, count in zip(stops, waited, strict=True))

    return ends


def plain_plateaus(configs: Sequence[EdgeConfig]) -> Lower:
    """Return what has the rates of each step as low as the plateau of any member has them, which follows its own test set."""
    first = Experiment(configs[0])
    recipe = first.recipe
    if recipe.schedule.name != "plateau":
        return lambda _step, _chain, _optimizer: None
    configs = [config for config in configs if config.data.test is not None]
    plain = [plain_experiment(config) for config in configs]
    unused = [plain_optimizer(each.chain.module, recipe.optimizer) for each in plain]
    plateaus = [plain_plateau(optimizer, recipe) for optimizer in unused]

    def lower(step: int, chain: Chain, optimizer: torch.optim.Optimizer) -> None:
        for config, each, plateau in zip(configs, plain, plateaus, strict=True):
            if step and first.evaluates_at(step) and plateau is not None:
                plateau.step(plain_evaluation(config, each._replace(chain=chain))[0])
        for place, group in enumerate(optimizer.param_groups):
            group["lr"] = min(of_member.param_groups[place]["lr"] for of_member in unused)

    return lower


def weights_at(session: InProcessSession, module: nn.Module) -> dict[str, Tensor]:
    """Return the state of a module as a member has it on its device."""
    return {
        name.partition("/")[2]: tensor
        for block in range(len(chain_of(module).blocks))
        for name, tensor in session.weights("edge", block).items()
    }


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare two state dicts bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
