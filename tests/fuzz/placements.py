"""Generated placements in which labels stay: no worker but the one with the loss gets a label or an output."""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from shared.placement import (
    Cargo,
    Crossing,
    ModelFacts,
    Permissions,
    Placement,
    Rows,
    StepPlan,
    Tile,
    check,
    crossings,
)
from tests.support.placements import WORKERS, Step, models, placements

NOBODY = Permissions(frozenset(WORKERS), labels_to=frozenset(), gradients_to=frozenset(WORKERS))
"""Samples and gradients may go anywhere, and labels nowhere."""


@dataclass
class Crossed:
    """placements: how many were judged. by_cargo: how much crosses in all of them together."""

    placements: int = 0
    by_cargo: Counter[Cargo] = field(default_factory=Counter)


@st.composite
def placements_where_labels_stay(draw: st.DrawFn, model: ModelFacts) -> Placement:
    """Any valid placement, but that the last block is, sample by sample, where the sample is."""
    placement = draw(placements(model))
    last = placement.blocks - 1
    below = [replace(tile, stop=min(tile.stop, last)) for tile in placement.tiles if tile.first < last]
    heads = [Tile(source.worker, last, last + 1, source.rows) for source in placement.sources]
    owners = {block: owner for block, owner in placement.owners.items() if block < last}
    if len(heads) > 1 or draw(st.booleans()):
        owners[last] = draw(st.sampled_from(WORKERS))
    tiles = draw(st.permutations([*below, *heads]))
    return replace(placement, tiles=tuple(tiles), owners=owners, labels=None)


def fuzz_placements(count: int, first_seed: int) -> Crossed:
    """Judge so many generated placements and models. Raises AssertionError where a label or an output would be heard."""
    crossed = Crossed()

    @seed(first_seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def judge(data: st.DataObject) -> None:
        together = {key: data.draw(st.booleans()) for key in ("clipped_together", "scaled")}
        model = replace(data.draw(models()), **together)
        placement = data.draw(placements_where_labels_stay(model))
        check(placement, model, NOBODY)
        everything = StepPlan(placement, model).crossings
        assert not [one for one in everything if _tells_a_label(one, placement)]
        _nobody_knows_more_than_is_his(placement, model)
        _nobody_may_be_told(placement, model)
        other = data.draw(placements(model))
        assert any(one.cargo is Cargo.LABEL for one in crossings(other, model)) != _labels_stay(other), (
            "else it would be seen"
        )
        crossed.placements += 1
        crossed.by_cargo.update(one.cargo for one in everything)

    judge()
    return crossed


def _labels_stay(placement: Placement) -> bool:
    """Tell whether the last block is, sample by sample, where the sample is."""
    heads = {sample: tile.worker for tile in placement.holders(placement.blocks - 1) for sample in _samples(tile.rows)}
    return heads == {sample: source.worker for source in placement.sources for sample in _samples(source.rows)}


def _samples(rows: Rows) -> range:
    return range(rows.begin, rows.end)


def _tells_a_label(one: Crossing, placement: Placement) -> bool:
    """Tell whether it brings a label, an output, or the error gradient of an output, in which the label can be read."""
    of_output = one.cargo in (Cargo.FEATURE, Cargo.ERROR_GRADIENT) and one.index >= placement.blocks
    return one.cargo is Cargo.LABEL or of_output


def _nobody_knows_more_than_is_his(placement: Placement, model: ModelFacts) -> None:
    """Carry out all programs; whatever crossed, a label and what tells it are known where the sample is, and nowhere else."""
    step, last = Step(placement, model).run(), placement.blocks
    own = {source.worker: set(_samples(source.rows)) for source in placement.sources}
    for worker in placement.workers:
        known = set(step.labels[worker])
        known |= {sample for index, sample in step.features[worker] | step.gradients[worker] if index == last}
        assert known <= own.get(worker, set()), f"{worker} knows more than is its own under {placement}"


def _nobody_may_be_told(placement: Placement, model: ModelFacts) -> None:
    """A worker refuses a label, an output and its error gradient, whoever sends it."""
    for worker, training in product(placement.workers, (True, False)):
        plan = StepPlan(placement, model, training=training)
        coming = [one for peer in plan.peers(worker) for one in plan.between(peer, worker)]
        telling = [one for one in coming if _tells_a_label(one, placement)]
        assert not telling, f"{worker} would take {telling} under {placement}"
