"""The history of the plain loop, row by row: the numbers that a run has however often it is interrupted."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edge_agent.data import evaluation_batches
from edge_agent.data.named import load_dataset
from edge_agent.training.history import HistoryRow
from isthmus import EdgeConfig
from shared.model.inputs import Inputs
from tests.support.plain import PlainExperiment, plain_experiment, plain_loop, plain_loss, plain_precision


class PlainRow(NamedTuple):
    """As `HistoryRow`, without what belongs to the way of the numbers to get there."""

    step: int
    epoch: int
    samples: int
    train_loss: float
    test_loss: float | None
    accuracy: float | None
    learning_rate: float


def of(rows: Sequence[HistoryRow]) -> list[PlainRow]:
    """The same of a run."""
    return [PlainRow(*(getattr(row, name) for name in PlainRow._fields)) for row in rows]


def plain_history(config: EdgeConfig, is_evaluated: Callable[[int], bool]) -> list[PlainRow]:
    """A row at the end of each epoch, at each evaluation and at the end. is_evaluated: asked of the steps done."""
    return plain_run(config, is_evaluated)[0]


def plain_run(
    config: EdgeConfig,
    is_evaluated: Callable[[int], bool],
    states: dict[int, dict[str, Tensor]] | None = None,
    averages: dict[str, Tensor] | None = None,
    most_steps: int | None = None,
) -> tuple[list[PlainRow], dict[str, Tensor]]:
    """The rows, and the state dict at the end. states: gets that of each row, by its step. averages: see `plain_loop`.

    most_steps: after which it ends early.
    """
    rows, losses, rates, counts = list[PlainRow](), list[float](), list[float](), list[int]()
    experiment = plain_experiment(config)
    recipe, per_epoch, steps = experiment.recipe, experiment.loader.steps_per_epoch, most_steps or experiment.steps
    epoch_ends = {recipe.boundary_from(end) for end in range(per_epoch, steps + 1, per_epoch)}

    def done(step: int, loss: float) -> None:
        losses.append(loss)
        count, evaluates = step + 1, is_evaluated(step + 1)
        if not evaluates and count not in epoch_ends and count != steps:
            return
        test_loss, accuracy = plain_evaluation(config, experiment) if evaluates else (None, None)
        rows.append(
            PlainRow(
                count,
                recipe.epoch_of(count),
                sum(counts),
                sum(losses) / len(losses),
                test_loss,
                accuracy,
                rates[-1],
            )
        )
        losses.clear()
        if states is not None:
            states[count] = {name: tensor.clone() for name, tensor in experiment.chain.module.state_dict().items()}

    def figure(steps: int) -> float | None:
        if rows[-1:] and rows[-1].step == steps:
            return rows[-1].test_loss if config.training.schedule.metric == "loss" else rows[-1].accuracy
        return None

    def batches() -> Iterator[tuple[int, Inputs, Tensor]]:
        for batch in experiment.loader.iterate(0, steps):
            assert isinstance(batch.labels, Tensor)
            counts.append(batch.samples)
            yield batch.step, batch.inputs, batch.labels

    return rows, plain_loop(experiment.chain, recipe, batches(), done, figure, rates, averages)


def plain_evaluation(config: EdgeConfig, experiment: PlainExperiment) -> tuple[float, float]:
    """The mean loss and the share of correct samples of the test set."""
    assert config.data.test is not None, "it is evaluated on"
    module, (total, correct, samples) = experiment.chain.module, (0.0, 0, 0)
    dataset = load_dataset(config.data.test.factory, config.data.test.kwargs)
    module.eval()
    with torch.no_grad():
        for batch in evaluation_batches(dataset, config.data.batch_size):
            assert isinstance(batch.inputs, Tensor)
            with plain_precision(experiment.recipe):
                output = module(batch.inputs)
                loss = plain_loss(config.training.loss, output, batch.labels)
            total += float(loss) * len(batch.labels)
            correct += int((output.argmax(1) == batch.labels).sum())
            samples += len(batch.labels)
    module.train()
    return total / samples, correct / samples
