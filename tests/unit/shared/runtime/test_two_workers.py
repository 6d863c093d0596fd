"""Two workers on one cut over a slow link in virtual time: as late as K allows, exact, and without superfluous state."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from shared.execution.blocks import PlacedBlocks
from shared.execution.split import Scheme
from shared.model.random_state import random_state
from shared.placement import Cargo, Placement, Route, two_workers
from shared.registry import POLICIES
from shared.training.recipe import Recipe
from tests.support.linked import LinkedSession
from tests.support.models.tuples import CLASSES, CUTS, WIDTH, tupled, tupled_chain
from tests.support.placed import batch_of, built, recipe, state_of
from tests.support.plain import assert_same_bits
from tests.support.plain_late import PlainEdge, plain_clipped, plain_split, steady_order
from tests.support.plain_tiles import PlainTiles
from tests.support.virtual import Wire, run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, SAMPLES, CUT = 20, 4, 2


def at_cut(cut: int, scheme: Scheme) -> Placement:
    codecs = {
        Route("edge", "gpu", Cargo.FEATURE): scheme.codec,
        Route("gpu", "edge", Cargo.ERROR_GRADIENT): scheme.downlink_codec,
    }
    return replace(two_workers("edge", "gpu", cut, 4, SAMPLES, staleness=scheme.staleness), version=1, codecs=codecs)


def far_away(_sender: str, _receiver: str) -> Wire:
    return Wire(1e9, 1.0)


def trained(module: nn.Module, placement: Placement, batches, told: Recipe | None = None, **how) -> LinkedSession:
    async def main() -> LinkedSession:
        session = LinkedSession(module, placement, told or recipe("sgd"), **how)
        await session.train(batches)
        return session

    return run_virtually(main)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limit", range(6))
@pytest.mark.parametrize(
    ("optimizer", "momentum", "correction"),
    [("adam", 0.0, "none"), ("adam", 0.0, "prediction"), ("sgd", 0.9, "prediction"), ("sgd", 0.0, "prediction")],
)
def test_over_a_slow_link_every_gradient_is_as_late_as_allowed(limit, policy, optimizer, momentum, correction):
    """A stricter rule would leave the link waiting."""
    told = recipe(optimizer).model_copy(update={"staleness_correction": correction})
    if momentum:
        told = told.model_copy(update={"optimizer": told.optimizer.model_copy(update={"momentum": momentum})})
    batches = [batch_of(step, SAMPLES) for step in range(STEPS)]
    scheme, module = Scheme(limit, policy), built("dropping")
    session = trained(module, at_cut(CUT, scheme), batches, told, backward=policy, wires=far_away)
    edge = session.blocks["edge"]
    assert edge.staleness == [min(step, limit) for step in range(STEPS) for _ in range(CUT)]
    assert edge.most_inputs_kept <= limit
    order = steady_order(0, STEPS, limit)
    plain_split(list(module), CUT, told, policy, scheme.feedback, order, lambda _: scheme, batches.__getitem__)
    assert_same_bits(dict(module.state_dict()), state_of(session.chains, session.placement))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("correction", ["none", "prediction"])
def test_where_one_norm_has_all_updates_late_all_are_corrected(limit, policy, correction, monkeypatch):
    told = recipe("sgd", 0.3, clip="model").model_copy(update={"staleness_correction": correction})
    module, batches, events = built("dropping"), [batch_of(step, SAMPLES) for step in range(STEPS)], []
    for what in ("forward", "learn", "backward", "update"):
        monkeypatch.setattr(PlacedBlocks, what, noted(events, what))
    session = trained(module, at_cut(CUT, Scheme(limit)), batches, told, backward=policy, wires=far_away)
    monkeypatch.undo()
    assert most_late(events, "gpu") == limit
    sides = {"edge": list(module)[:CUT], "gpu": list(module)[CUT:]}
    halves = {side: PlainEdge(blocks, told, policy, is_late=limit > 0) for side, blocks in sides.items()}
    plain_clipped(halves, told, events, batches)
    assert_same_bits(dict(module.state_dict()), state_of(session.chains, session.placement))


def noted(events: list[tuple[str, str, int]], what: str):
    method = getattr(PlacedBlocks, what)

    def noting(blocks: PlacedBlocks, step: int, *more: object, **named: object) -> object:
        events.append((blocks.worker, what, step))
        return method(blocks, step, *more, **named)

    return noting


def most_late(events: list[tuple[str, str, int]], worker: str) -> int:
    """The most updates that a batch of this worker has lacked when it went forward."""
    done, late = 0, 0
    for who, what, step in events:
        if who == worker:
            done += what == "update"
            late = max(late, step - done if what == "learn" else 0)
    return late


@pytest.mark.parametrize("limit", [0, 2])
def test_a_stage_that_never_learns_keeps_nothing_to_replay(limit):
    module = built("dropping")
    module[:CUT].requires_grad_(False)
    batches = [batch_of(step, SAMPLES) for step in range(STEPS)]
    session = trained(module, at_cut(CUT, Scheme(limit)), batches, wires=far_away)
    assert session.blocks["edge"].most_inputs_kept == 0
    plain = PlainTiles(list(module), session.placement, recipe("sgd"))
    for step, batch in enumerate(batches):
        plain.step(step, *batch)
    assert_same_bits(dict(module.state_dict()), state_of(session.chains, session.placement))


def of_tuples(step: int) -> tuple[Tensor, Tensor]:
    with random_state("tuples", step):
        return torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))


@pytest.mark.first_case
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "scheme",
    [Scheme(2), Scheme(2, "stash"), Scheme(3, codec="uniform4", downlink_codec="uniform8")],
    ids=["late", "stash", "compressed"],
)
@pytest.mark.parametrize("fickle", [False, True])
def test_several_tensors_cross_at_once(cut, scheme, fickle):
    """Floats have a gradient each, in some steps or in all, and integers have none. All are late and compressed by
    themselves."""
    expected, batches = tupled(fickle=fickle), [of_tuples(step) for step in range(STEPS)]
    session = trained(
        expected,
        at_cut(cut, scheme),
        batches,
        backward=scheme.backward,
        wires=far_away,
        make_chain=lambda module: tupled_chain(module, SAMPLES),
    )
    order = steady_order(0, STEPS, scheme.staleness)
    plain_split(
        list(expected.parts), cut, recipe("sgd"), scheme.backward, scheme.feedback, order, lambda _: scheme, of_tuples
    )
    assert_same_bits(dict(expected.state_dict()), state_of(session.chains, session.placement))


def test_a_run_gets_on_over_streams_of_a_few_packets_each():
    few: Iterator[int] = itertools.repeat(12)
    session = trained(
        built("dropping"), at_cut(CUT, Scheme(2)), [batch_of(step, SAMPLES) for step in range(6)], losses=few
    )
    assert session.streams > 2
