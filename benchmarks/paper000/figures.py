"""The figures of training: the trainings that each compares, and what paper 000 says of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.paper000.tasks import TASKS
from benchmarks.paper000.training import Training
from shared.registry.corrections import momentum_of

NO_LIMIT = 32
"""K of full parallelisation: more batches than any link holds."""
BITS = (8, 4, 3, 2)
BATCH_SIZES = (8, 32, 128)


@dataclass(frozen=True)
class Row:
    """A way to train."""

    label: str
    training: Training
    """Training of the first seed."""
    paper: float | None = None
    """The paper's accuracy in percent, or its loss."""


Rows = Callable[[Training], Sequence[Row]]
"""Makes the ways that are compared, of the training on the device alone, which is the first of them."""


@dataclass(frozen=True)
class Figure:
    """Comparison of ways to train, for some tasks."""

    title: str
    paper: str
    """Finding of the paper."""
    tasks: tuple[str, ...]
    rows: Rows
    has_curves: bool = False
    """Interest in the course of a training."""


def _alone(alone: Training) -> Row:
    return Row("device alone", alone)


def _late(alone: Training, label: str = "as in the paper", cut: int | None = None) -> Row:
    """Return training across the cut with the paper's K."""
    task = TASKS[alone.task]
    staleness = task.staleness_of(alone.epochs)
    return Row(label, replace(alone, cut=task.sizes[alone.size].cut if cut is None else cut, staleness=staleness))


def _with(row: Row, label: str, bits: int, *, feedback: bool = True) -> Row:
    return Row(label, replace(row.training, codec=f"uniform{bits}", feedback=feedback))


def _at_k(alone: Training, staleness: int, label: str) -> Row:
    return Row(label, replace(_late(alone).training, staleness=((0, staleness),)))


def _by_k(alone: Training) -> Sequence[Row]:
    rows = [_at_k(alone, staleness, f"K = {staleness}") for staleness in (1, 2, 4, 5, 8)]
    return [_alone(alone), *rows, _at_k(alone, NO_LIMIT, f"no limit (K = {NO_LIMIT})")]


def _by_cut(alone: Training) -> Sequence[Row]:
    return [_alone(alone), *(_late(alone, f"cut {cut}", cut) for cut in TASKS[alone.task].sizes[alone.size].cuts)]


def _by_bits(alone: Training) -> Sequence[Row]:
    first, *rows = _by_cut(alone)
    return [first, *(_with(row, f"{row.label}, {bits} bits", bits) for row in rows for bits in BITS)]


def _by_batch_size(alone: Training) -> Sequence[Row]:
    rows = []
    for batch_size in BATCH_SIZES:
        one = replace(alone, batch_size=batch_size)
        last = TASKS[alone.task].sizes[alone.size].cuts[-1]
        rows += [
            Row(f"device alone, batches of {batch_size}", one),
            _late(one, f"K = 5, batches of {batch_size}", last),
        ]
    return rows


def _by_feedback(alone: Training) -> Sequence[Row]:
    late = _late(alone, "K = 5, 32 bits", TASKS[alone.task].sizes[alone.size].cuts[-1])
    pairs = [(bits, feedback) for bits in (8, 4, 2) for feedback in (True, False)]
    return [
        _alone(alone),
        late,
        *(_with(late, f"{bits} bits, {'' if on else 'no '}feedback", bits, feedback=on) for bits, on in pairs),
    ]


def _curves(alone: Training) -> Sequence[Row]:
    return [_alone(alone), _late(alone), _at_k(alone, NO_LIMIT, f"no limit (K = {NO_LIMIT})")]


_TABLE_4: dict[str, tuple[float | None, ...]] = {
    "resnet50": (94.71, 93.48, 95.16),
    "mobilenetv3": (91.51, 92.49, 92.06),
    "vgg19": (91.57, 91.06, 91.82),
    "bilstm": (87.08, 85.62, 86.29),
    "headlines": (None, None, None),
    "type1_cifar10": (93.80, 93.39, 94.24),
    "probe_cifar10": (None,),
    "type1_tiny": (73.7, 74.6, 73.6),
    "type2_tiny": (70.7, 70.2, 70.9),
    "probe_tiny": (None,),
    "din": (73.17, 73.09, 73.09),
    "chair": (4.7e-4, 4.9e-4, 5.2e-4),
}
"""The paper's figures of the device alone, the pipeline, and the pipeline with 8 bits and feedback; of a linear probe, which is
beside them, and of headlines it has none."""


def _table_4(alone: Training) -> Sequence[Row]:
    values = _TABLE_4[alone.task]
    late = _late(alone, "pipeline")
    coded = _with(late, "pipeline, 8 bits, feedback", 8)
    rows = [replace(row, paper=paper) for row, paper in zip((_alone(alone), late, coded), values, strict=False)]
    if len(rows) == 3 and momentum_of(TASKS[alone.task].sizes[alone.size].optimizer):
        rows.append(Row("the same, predicted weights", replace(coded.training, correction="prediction")))
    return rows


FIGURES = {
    "fig3": Figure(
        "Change of the weights' norm over K steps",
        "most of the weights change remains negligible when K is less than 5",
        ("resnet50", "chair", "bilstm"),
        lambda alone: [_alone(alone)],
    ),
    "fig4": Figure(
        "Standard deviation of the weights' change over K steps",
        "6.94e-05, 8.49e-05, 1e-04 at K = 4, 5, 6 in epoch 0; 5.98e-05, 7.41e-05, 8.84e-05 in epoch 2; 1.36e-05, 1.71e-05, "
        "2.06e-05 in epoch 4, the last",
        ("type1_cifar10",),
        lambda alone: [_alone(alone)],
    ),
    "fig6": Figure(
        "Accuracy by K",
        "a larger K leads to a lower accuracy (its figures are a picture)",
        ("bilstm", "resnet50"),
        _by_k,
    ),
    "fig7": Figure(
        "Accuracy by the cut, with the K of the paper",
        "less than 1.5 points are lost at any cut",
        ("bilstm", "resnet50", "type1_tiny"),
        _by_cut,
    ),
    "fig8": Figure(
        "Fewest bits by the cut",
        "each cut has its own fewest bits within a given loss (its figures are a picture)",
        ("bilstm", "resnet50", "type1_tiny"),
        _by_bits,
    ),
    "fig12": Figure(
        "Batch sizes, late cut",
        "almost the same course and accuracy with K = 5 as without, for small and large batches",
        ("resnet50",),
        _by_batch_size,
        has_curves=True,
    ),
    "fig13": Figure(
        "Feedback, late cut",
        "no clear difference between 8 bits with feedback and none of both; without feedback it fails to converge",
        ("resnet50",),
        _by_feedback,
        has_curves=True,
    ),
    "fig14": Figure(
        "Courses of training",
        "K = 5 almost as the device alone, less than 1 point below in most cases; without a limit it fails to converge",
        ("resnet50", "mobilenetv3", "type1_cifar10", "type1_tiny", "bilstm"),
        _curves,
        has_curves=True,
    ),
    "table4": Figure(
        "Final accuracy, or loss",
        "at most 0.1 points below with feedback, but for BI-LSTM's 0.79; 1.11 times the generator's loss",
        tuple(_TABLE_4),
        _table_4,
    ),
}
