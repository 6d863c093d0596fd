"""The process that trains one copy, of which it has the order on standard input.

It reports on standard output, a JSON object a line. Output of a model or data set goes to standard error instead.
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TextIO

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from cloud_trainer.calibration.orders import CopyOrder
from cloud_trainer.config import StandInConfig
from shared.concurrency.threads import yield_to_others
from shared.errors import DataError, IsthmusError, ProtocolError, one_line
from shared.execution.copy_training import Copy, steps_of
from shared.execution.counted_batches import Batch
from shared.execution.failures import translate_failures
from shared.execution.split import Scheme
from shared.factory import load_factory
from shared.model.build import build_checked_chain, check_range, parse_kwargs
from shared.model.features import specs_bytes
from shared.model.footprint import estimate_training_bytes, state_bytes
from shared.model.inputs import InputSpecs
from shared.model.random_state import derive_seed
from shared.model.spec import TensorSpec
from shared.training.device import prepare_process
from shared.training.losses import LossHead
from shared.training.metrics import load_metrics
from shared.training.optimizers import check_optimizer, update_memory
from shared.training.policies import policy_by_name
from shared.training.precision import computing
from shared.training.schedule import check_schedule
from shared.transport.rpc.status import status_of

_NICENESS = 10
"""Sessions go first on the processor."""
_REPORT_STEPS = 100
_SAYS = "the trainer's stand-in data set"


class _StandIn:
    """The operator's samples as batches like the edge's."""

    def __init__(self, order: CopyOrder) -> None:
        """Raises DataError, and ProtocolError for samples that are not like the edge's."""
        self._train, self._test = _dataset(order.train), _dataset(order.test)
        self.example = _example(order)
        self._batch_size, self._seed = self.example.batch_size, order.recipe.seed
        if len(self._train) < self._batch_size:
            raise ProtocolError(f"{_SAYS} has {len(self._train)} samples, fewer than a batch of {self._batch_size}")
        self.steps_per_epoch = len(self._train) // self._batch_size
        self.judged_batches = -(-len(self._test) // self._batch_size)
        if (has := InputSpecs.of(next(self.batches(0, 1))[0])) != self.example:
            raise ProtocolError(f"{_SAYS} has samples {_described(has)}, the edge's are {_described(self.example)}")

    def batches(self, first_step: int, stop_step: int) -> Iterator[Batch]:
        """Yield the batches of the steps from one to another; each epoch has an order of its own."""
        yield from map(_batch, DataLoader(self._train, batch_sampler=self._indices(first_step, stop_step)))

    def _indices(self, first_step: int, stop_step: int) -> Iterator[list[int]]:
        order_of = lru_cache(maxsize=1)(self._order)
        for step in range(first_step, stop_step):
            epoch, position = divmod(step, self.steps_per_epoch)
            begin = position * self._batch_size
            yield order_of(epoch)[begin : begin + self._batch_size].tolist()

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self._seed, "order", epoch))
        return torch.randperm(len(self._train), generator=generator)

    def judged(self) -> Iterator[Batch]:
        """All of the test set."""
        yield from map(_batch, DataLoader(self._test, self._batch_size))


def train(order: CopyOrder, report: TextIO) -> None:
    """Train and judge. Raises IsthmusError."""
    prepare_process(order.threads)
    LossHead(order.recipe.loss, order.allowed)  # refuses one that the operator has not allowed
    check_schedule(order.recipe, order.allowed)
    check_optimizer(order.recipe.optimizer, order.allowed)
    metrics = load_metrics(order.recipe, order.allowed, order.limits.metric_bytes, order.limits.of_a_build)
    data = _StandIn(order)
    steps = steps_of(order.epochs, data.steps_per_epoch)
    recipe = order.recipe.model_copy(update={"steps_per_epoch": data.steps_per_epoch, "total_steps": steps})
    kwargs = parse_kwargs(order.kwargs_json)
    updates = update_memory(recipe)
    limits = order.limits
    estimate = estimate_training_bytes(
        order.factory,
        kwargs,
        data.example,
        updates,
        learning=recipe.learning,
        allowed=order.allowed,
        limits=limits.of_a_build,
    )
    held = order.staleness + 1 if policy_by_name(order.backward).keeps_graphs else 1
    limits.check_memory(held * (estimate or 0))
    with computing(recipe.base_precision):
        chain = build_checked_chain(
            order.factory,
            kwargs,
            recipe.seed,
            data.example.example(),
            learning=recipe.learning,
            output=recipe.output,
            allowed=order.allowed,
            limits=limits.of_a_build,
            check=lambda module: limits.check_memory(held * state_bytes(module, updates)),
        )
    check_range(order.cut, chain)  # nothing crosses: the whole copy trains here
    in_flight = (order.staleness + 1) * (specs_bytes(chain.features[order.cut]) + data.example.bytes)
    limits.check_memory(held * (estimate or state_bytes(chain.module, updates)) + in_flight)
    scheme = Scheme(order.staleness, order.backward, order.feedback, order.codec)
    copy = Copy(chain, order.cut, recipe, scheme, torch.device(order.device), metrics)
    if order.timing_only:
        step_seconds, judged_seconds, figures = copy.timed(data.batches, data.judged())
        _say(
            report,
            steps=0,
            timing={
                "seconds_per_step": step_seconds,
                "seconds_per_judged_batch": judged_seconds,
                "steps_per_epoch": data.steps_per_epoch,
                "judged_batches": data.judged_batches,
                "figures": figures,
            },
        )
        return
    for first in range(0, steps, data.steps_per_epoch):
        stop = min(first + data.steps_per_epoch, steps)
        copy.train(first, stop, _counted(data.batches(first, stop), first, report))
    _say(report, steps=steps, judged={"figures": copy.judge(data.judged())})


def _counted(batches: Iterator[Batch], first_step: int, report: TextIO) -> Iterator[Batch]:
    for step, batch in enumerate(batches, first_step):
        if step % _REPORT_STEPS == 0:
            _say(report, steps=step)
        yield batch


def _example(order: CopyOrder) -> InputSpecs:
    specs = tuple(TensorSpec(shape, getattr(torch, dtype)) for shape, dtype in order.inputs)
    return InputSpecs(specs, order.input_names)


def _described(inputs: InputSpecs) -> str:
    """Tell the kinds of the inputs of one sample."""
    kinds = [f"{str(spec.dtype).removeprefix('torch.')} {spec.shape[1:]}" for spec in inputs.specs]
    names = [f"{name} " for name in inputs.names] or [""] * len(kinds)
    return ", ".join(map("".join, zip(names, kinds, strict=True)))


def _batch(batch: list[Any]) -> Batch:
    """Return a batch as torch's loader makes it, a tuple as a list."""
    inputs, labels = (tuple(part) if isinstance(part, list) else part for part in batch)
    return inputs, labels


def _dataset(config: StandInConfig) -> Any:
    """Raises DataError."""
    make = load_factory(config.factory, error=DataError)
    try:
        dataset = make(**config.kwargs)
        len(dataset)
        dataset[0]
    except Exception as cause:  # the operator's own code may raise anything
        raise DataError(f"{_SAYS} {config.factory!r} failed with {type(cause).__name__}: {cause}") from cause
    return dataset


def _say(report: TextIO, **content: object) -> None:
    print(json.dumps(content), file=report, flush=True)


def main() -> None:
    """Read the order, train, report."""
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = CopyOrder.model_validate_json(sys.stdin.read())
    yield_to_others(_NICENESS)
    try:
        # A GPU that fails here fails for this process alone, so it is no failure of the trainer's device.
        with translate_failures("the training of a copy", torch.device("cpu")):
            train(order, report)
    except IsthmusError as error:
        _say(report, refused={"code": status_of(error).name, "sentence": one_line(str(error))})
