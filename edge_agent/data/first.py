"""The first batch of a training set, which tells of what kind its batches are."""

from contextlib import suppress
from dataclasses import replace

import structlog

from edge_agent.data.collate import Collate, Stacked
from edge_agent.data.loader import Batch, sample_count
from edge_agent.data.samples import BatchRequest, Dataset, SampleReader
from edge_agent.data.skipping import Skipping
from edge_agent.data.stream import BatchPlace, StreamState, is_iterated
from edge_agent.data.transform import BatchTransform
from shared.errors import DataError
from shared.model.inputs import features_of_inputs
from shared.model.snapshot import same_bits
from shared.training.losses import label_tensors

_log = structlog.get_logger(__name__)

_LOOKED_AT = 20
"""Samples of the whole set of which the most tell the kind of all, where others stand for those that are broken: the first one
may be."""


def first_batch(
    dataset: Dataset,
    batch_size: int,
    collate: Collate | None = None,
    skipping: Skipping | None = None,
    transform: BatchTransform | None = None,
    *,
    is_spread: bool = False,
) -> Batch:
    """Read the first samples of a training set. Raises as `BatchLoader`, and DataError for one that is not iterated alike.

    is_spread: reads samples from the whole set, as evenly as can be, unless that is only iterated.
    """
    if is_iterated(dataset):
        return _first_iterated(dataset, batch_size, collate, transform)
    count = sample_count(dataset, skipping)
    reader = SampleReader(dataset, 0, collate, transform)
    if skipping is not None and skipping.like is None and collate is None:
        some = list(range(0, count, -(-count // _LOOKED_AT)))
        skipping.like = reader.usual_kind(BatchRequest(some, ("evaluation", 0)))
    spares = None if skipping is None else skipping.spares(0, count)
    size = min(batch_size, count)
    every = count // size if is_spread else 1
    request = BatchRequest(list(range(0, size * every, every)), ("evaluation", 0), spares)
    ((inputs, labels),) = reader.read([request])
    if skipping is not None:
        skipping.judge(reader.unreadable)
        skipping.like = reader.kind or skipping.like
    if not is_spread:
        _warn_of_state(dataset, collate)
    return Batch(0, inputs, labels)


def _warn_of_state(dataset: Dataset, collate: Collate | None) -> None:
    """Warn of a sample that changes when it is read again with the same random numbers: samples are read ahead, by other
    processes and again after a stop."""
    with suppress(DataError):  # of a sample that is skipped, or a batch of one, which training may never have
        once, again = SampleReader(dataset, 0, collate).read([BatchRequest([0], ("evaluation", 0))] * 2)
        if not _alike(once, again):
            _log.warning(
                "sample 0 is another one when it is read again, so a resumed run, or other data.workers, train on others; "
                "have a sample follow from its number and the random numbers of torch, numpy and `random` alone",
                dataset=type(dataset).__name__,
            )


def _first_iterated(
    dataset: Dataset, batch_size: int, collate: Collate | None, transform: BatchTransform | None
) -> Batch:
    """Read the first batch of an iterator, and try how it could go on after a stop."""

    def read(*requests: BatchRequest) -> tuple[list[Stacked], StreamState | None]:
        reader = SampleReader(dataset, 0, collate, transform)
        return list(reader.read(requests)), reader.state

    name = type(dataset).__name__
    first, second = (
        BatchRequest(list(range(batch_size)), ("evaluation", 0, step), place=BatchPlace(0, step), tells_state=not step)
        for step in (0, 1)
    )
    (batch,), state = read(first)
    (again, *others), _ = read(first, second) if state is not None and state.text else read(first)
    if not _alike(batch, again):
        raise DataError(
            f"{name} gives other samples when it is iterated again, so a run could not go on after a stop; let each "
            "iteration begin at its first sample"
        )
    if others and state is not None:
        try:
            (resumed,), _ = read(replace(second, state=state.text))
            why = "" if _alike(others[0], resumed) else "the samples after it are others when it is loaded"
        except DataError as error:
            why = str(error)
        state = StreamState("" if why else state.text, why)
    if state is not None and state.why_unkept:
        state.warn(name)
    return Batch(0, *batch, resumes_by_state=state is not None and bool(state.text))


def _alike(one: Stacked, other: Stacked) -> bool:
    tensors = ((*features_of_inputs(inputs), *label_tensors(labels)) for inputs, labels in (one, other))
    return all(map(same_bits, *tensors))
