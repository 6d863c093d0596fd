"""Training in float16 skips the updates that torch's own `GradScaler` skips, everywhere, and computes the same bits."""

import copy
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shared.codec import error_feedback
from shared.placement import AGENT, Cargo, Placement, Route, Rows, Source, Tile
from tests.support.crossed import crossed
from tests.support.examples import examples
from tests.support.models.overflowing import overflowing
from tests.support.placed import (
    CLASSES,
    INPUTS,
    MODEL_FACTS,
    MODELS,
    WIDTH,
    LooseSession,
    batch_of,
    built,
    chain_of,
    in_process,
    recipe,
    state_of,
)
from tests.support.placements import valid_placements
from tests.support.plain import assert_same_bits, plain_loop
from tests.support.plain_tiles import PlainTiles

pytestmark = pytest.mark.usefixtures("one_thread")
WHOLE, STEPS = Rows(0, 8), 8


def placed(workers: tuple[str, ...], *tiles: tuple[str, int, int], staleness: int = 0) -> Placement:
    return Placement(
        version=0,
        blocks=4,
        batch_size=8,
        workers=workers,
        tiles=tuple(Tile(worker, first, stop, WHOLE) for worker, first, stop in tiles),
        sources=(Source(AGENT, WHOLE),),
        staleness=staleness,
    )


PAIR = placed((AGENT, "near"), (AGENT, 0, 2), ("near", 2, 4))
KINDS = {
    "two workers": PAIR,
    "labels stay": placed((AGENT, "near"), (AGENT, 0, 1), ("near", 1, 3), (AGENT, 3, 4)),
    "chain of three": placed((AGENT, "near", "far"), (AGENT, 0, 1), ("near", 1, 2), ("far", 2, 4)),
    "inverted": placed((AGENT, "near"), ("near", 0, 2), (AGENT, 2, 4)),
    "nothing on the device": placed((AGENT, "near", "far"), ("near", 0, 2), ("far", 2, 4)),
    "the device alone": placed((AGENT,), (AGENT, 0, 4)),
}


def overflows(block: int, *steps: int, own: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return overflowing(block, steps, own, INPUTS, WIDTH, CLASSES)


def told(clip: str = "block", clip_norm: float | None = 0.5, batches: int = 1, optimizer: str = "adamw"):
    return recipe(optimizer, clip_norm, "fp16", clip=clip, accumulate_batches=batches)


def batches(steps: int = STEPS):
    return [batch_of(step, 8) for step in range(steps)]


def of_precision(module: nn.Module):
    return chain_of(module, "fp16")


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("kind", "clipping", "block", "own"),
    crossed(
        KINDS, [("block", None, 1), ("block", 0.5, 1), ("model", 0.5, 1), ("model", 0.5, 2)], [1, 2], [False, True]
    ),
)
def test_an_overflow_on_any_worker_skips_the_step_everywhere_as_in_one_process(kind, clipping, block, own):
    """Steps 2, 3 and 5: with two batches an update, the first two overflow in one."""
    clip, clip_norm, accumulated = clipping
    module, how = overflows(block, 2, 3, 5, own=own), told(clip, clip_norm, accumulated)
    plain, expected = copy.deepcopy(module), [2, 5] if accumulated == 2 else [2, 3, 5]
    chains = {worker: of_precision(copy.deepcopy(module)) for worker in KINDS[kind].workers}
    in_process(chains, KINDS[kind], how).train(0, STEPS, iter(batches()))
    tiles = PlainTiles([each.module for each in of_precision(copy.deepcopy(module)).blocks], KINDS[kind], how)
    for step, batch in enumerate(batches()):
        tiles.step(step, *batch)
    assert [step - step % accumulated for step in tiles.skipped] == [step - step % accumulated for step in expected]
    steps = ((step, *batch) for step, batch in enumerate(batches()))
    reference = plain_loop(of_precision(plain), how, steps)
    assert_same_bits(reference, state_of(chains, KINDS[kind]) | chosen_of(reference))
    assert_same_bits(reference, dict(tiles.blocks.state_dict()))


def chosen_of(state):
    """The buffers that no step changes."""
    return {name: value for name, value in state.items() if name.endswith(("chosen", "first"))}


def test_the_scale_stays_where_placements_follow_each_other():
    ways = [KINDS[kind] for kind in ("chain of three", "labels stay", "the device alone", "two workers", "inverted")]
    workers = (AGENT, "near", "far")
    ways = [replace(placement, workers=workers, version=version) for version, placement in enumerate(ways)]
    module, how = overflows(1, 1, 4, 9, 13), told()
    chains = {worker: of_precision(copy.deepcopy(module)) for worker in workers}
    session, given_batches = in_process(chains, ways[0], how), batches(15)
    for number, placement in enumerate(ways):
        if number:
            session.change(placement)
        session.train(3 * number, 3 * number + 3, iter(given_batches[3 * number : 3 * number + 3]))
    steps = ((step, *batch) for step, batch in enumerate(given_batches))
    reference = plain_loop(of_precision(module), how, steps)
    assert_same_bits(reference, state_of(chains, ways[-1]) | chosen_of(reference))
    assert session.loss_scale.skipped == 4


@st.composite
def cases(draw):
    """Draw a model and a placement of it, without staleness."""
    name = draw(st.sampled_from(sorted(MODELS)))
    return name, replace(draw(valid_placements(MODEL_FACTS[name], st.integers(3, 8))), staleness=0)


@settings(max_examples=examples(40), deadline=None)
@given(cases(), st.sampled_from(["block", "model"]), st.sampled_from([1, 2]), st.sampled_from([1.0, 1e6]))
def test_any_placement_is_one_process_with_its_tiles(case, clip, accumulated, size):
    """size: of the inputs; large ones make gradients that overflow."""
    name, placement = case
    how, module = told(clip, 0.5, accumulated, "sgd"), built(name)
    chains = {worker: of_precision(copy.deepcopy(module)) for worker in placement.workers}
    plain, simulated = PlainTiles(list(module), placement, how), in_process(chains, placement, how)
    given_batches = [batch_of(step, placement.batch_size) for step in range(4)]
    given_batches = [
        (inputs * size if step == 1 else inputs, labels) for step, (inputs, labels) in enumerate(given_batches)
    ]
    simulated.train(0, 4, iter(given_batches))
    for step, batch in enumerate(given_batches):
        plain.step(step, *batch)
    assert_same_bits(comparable(module.state_dict()), comparable(state_of(chains, placement)))


def comparable(state):
    """The state with a number in place of each NaN: large inputs leave such in the statistics of batch-norm."""
    return {name: tensor.nan_to_num(nan=-7.0) for name, tensor in state.items()}


@settings(max_examples=examples(15), deadline=None)
@given(
    st.sampled_from(sorted(set(KINDS) - {"the device alone"})),
    st.integers(0, 3),
    st.sampled_from(["replay", "stash"]),
    st.integers(0, 10**6),
)
def test_the_order_of_messages_changes_nothing_and_a_recorded_run_replays(kind, staleness, backward, seed):
    placement = replace(KINDS[kind], staleness=staleness)
    module = built("dropping")
    loose = LooseSession(module, placement, told(), backward, random.Random(seed), make_chain=of_precision)
    large = [(inputs * (1e6 if step in (2, 3) else 1), labels) for step, (inputs, labels) in enumerate(batches())]
    loose.train(large)
    chains = {worker: of_precision(copy.deepcopy(module)) for worker in placement.workers}
    again = in_process(chains, placement, told(), backward)
    again.replay(loose.turns, iter(large))
    assert_same_bits(state_of(loose.chains, placement), state_of(chains, placement))
    skipped = loose.blocks[AGENT].held.loss_scale.skipped
    assert skipped == again.loss_scale.skipped >= 1


@pytest.mark.parametrize("downlink", ["uniform8", "mbq4", "fp16"])
def test_no_codec_hides_an_overflow(downlink):
    codecs = {
        Route(AGENT, "near", Cargo.FEATURE): "uniform8",
        Route("near", AGENT, Cargo.ERROR_GRADIENT): downlink,
    }
    placement = replace(PAIR, codecs=codecs)
    # The gradient that overflows is that at the input of the trainer's only block with one: its own parameters are after it.
    module = overflows(2, 3)
    chains = {worker: of_precision(copy.deepcopy(module)) for worker in placement.workers}
    session = in_process(chains, placement, told())
    session.train(0, STEPS, iter(batches()))
    assert session.loss_scale.skipped == 1
    assert all(bool(value.isfinite().all()) for value in state_of(chains, placement).values())


@pytest.mark.parametrize("most_exact", [8, error_feedback.MOST_EXACT_ELEMENTS])
def test_the_correction_of_a_lossy_feature_knows_no_scale(most_exact, monkeypatch):
    monkeypatch.setattr(error_feedback, "MOST_EXACT_ELEMENTS", most_exact)
    monkeypatch.setattr(error_feedback, "PART_ELEMENTS", most_exact)
    found = []
    codecs = {Route(AGENT, "near", Cargo.FEATURE): "uniform2"}
    for scale in (2.0**4, 2.0**10):
        module = built("dropping")
        chains = {worker: of_precision(copy.deepcopy(module)) for worker in PAIR.workers}
        session = in_process(chains, replace(PAIR, codecs=codecs), told("block", None, optimizer="sgd"))
        session.loss_scale.go_back(0, {"scale": scale, "finite_updates": 0, "skipped": 0})
        session.train(0, 3, iter(batches(3)))
        found.append(state_of(chains, PAIR))
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=0, atol=1e-4)
