"""Placed workers over production links in virtual time: they evaluate and change places, whatever is lost."""

import copy
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shared.errors import ModelError, ProtocolError
from shared.model.random_state import generator_states
from shared.placement import (
    Cargo,
    Placement,
    Route,
    Rows,
    Source,
    StepPlan,
    Tile,
    crossings,
    first_worker,
    unnamed_blocks,
)
from shared.training.step_log import StepLog, check_steps
from shared.wire.isthmus.v1.tensor_pb2 import Frame, Role
from tests.support.examples import examples
from tests.support.linked import drive
from tests.support.linking import Seconds, announce, still_stream
from tests.support.placed import MODEL_FACTS, WIDTH, batch_of, built, chain_of, in_process, method, recipe, state_of
from tests.support.placed_session import PlacedSession
from tests.support.placements import chains, valid_placements
from tests.support.plain import assert_same_bits
from tests.support.plain_tiles import PlainTiles
from tests.support.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 3
CODECS = st.sampled_from(["raw", "fp32", "bf16", "uniform8", "uniform4"])
LOSSES = st.lists(st.integers(0, 60), max_size=8)
SEEDS = st.integers(0, 1 << 30)


@st.composite
def coded(draw, placement: Placement) -> Placement:
    """Return the same placement, with any codec on each of its features, forward and back."""
    codecs: dict[Route, str] = {}
    for one in crossings(placement, unnamed_blocks(placement.blocks)):
        if one.cargo is Cargo.FEATURE:
            codecs[Route(one.sender, one.receiver, Cargo.FEATURE)] = draw(CODECS)
            codecs[Route(one.receiver, one.sender, Cargo.ERROR_GRADIENT)] = draw(CODECS)
    return replace(placement, codecs=codecs)


@st.composite
def coded_placements(draw, name: str) -> Placement:
    """Draw up to three workers in any arrangement, or a chain of up to four if the model has as many blocks."""
    placement = draw(valid_placements(MODEL_FACTS[name]))
    if name == "dropping":
        placement = draw(st.one_of(chains(), st.just(placement)))
    return draw(coded(placement))


def delays(seed: int):
    dice = random.Random(seed)
    longest = dice.choice([0.0, 0.001, 0.05])
    return lambda: dice.uniform(0, longest)


def everything(session: PlacedSession):
    """Return a copy of all state that computing could change."""
    held = [
        value.detach().clone()
        for chain in session.chains.values()
        for block in chain.blocks
        for values in (block.named_parameters(), block.named_buffers(), block.named_transients())
        for value in values.values()
    ]
    return [*held, *(state.clone() for state in generator_states())]


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.sampled_from(["dropping", "normed"]), st.integers(1, 12), LOSSES, SEEDS)
def test_an_evaluation_is_that_of_the_simulation_and_changes_nothing(data, name, count, losses, seed):
    placement, told, module = data.draw(coded_placements(name)), recipe("adam"), built(name)
    samples = [placement.batch_size] * (count - 1) + [data.draw(st.integers(1, placement.batch_size))]
    batches = [batch_of(number, of_batch) for number, of_batch in enumerate(samples)]
    training = [batch_of(step, placement.batch_size) for step in range(2)]

    async def main() -> None:
        session = PlacedSession(module, placement, told, seconds=delays(seed), losses=losses)
        await session.train(training)
        simulated = in_process(copy.deepcopy(session.chains), placement, told)
        before = everything(session)
        losses_of_batches = await session.evaluate(batches)
        for now, then in zip(everything(session), before, strict=True):
            assert now.equal(then)
        expected = [simulated.evaluate(*batch) for batch in batches]
        for ours, its in zip(losses_of_batches, expected, strict=True):
            assert (ours.correct, ours.samples) == (its.correct, its.samples)
            assert ours.loss == pytest.approx(its.loss, rel=1e-12), "parts may be added in another order"
        await session.train(training)
        await session.stop()

    run_virtually(main)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.sampled_from(["dropping", "normed"]), st.sampled_from(["replay", "stash"]), LOSSES, SEEDS)
def test_placements_follow_each_other_and_an_order_of_events_decides_every_bit(data, name, backward, losses, seed):
    ways = data.draw(st.lists(coded_placements_of_three(name), min_size=2, max_size=4))
    told, module = recipe("adam", samples_ahead=data.draw(st.sampled_from([0, 2]))), built(name)

    async def main() -> None:
        session = PlacedSession(module, ways[0], told, method(backward), delays(seed), losses)
        replayed = {worker: chain_of(copy.deepcopy(module)) for worker in session.chains}
        simulated = in_process(replayed, ways[0], told, backward)
        for number, placement in enumerate(ways):
            if number:
                await session.change(placement)
                simulated.change(placement)
            batches = [batch_of(session.next_step + step, placement.batch_size) for step in range(STEPS)]
            await session.train(batches)
            simulated.replay(session.turns, iter(batches))
            assert_same_bits(state_of(replayed, placement), state_of(session.chains, placement))
        await session.stop()

    run_virtually(main)


@st.composite
def coded_placements_of_three(draw, name: str) -> Placement:
    """Draw any placement of three workers, of batches of 6."""
    return draw(coded(draw(valid_placements(MODEL_FACTS[name], st.just(6)))))


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(st.data(), st.sampled_from(["dropping", "normed"]), LOSSES, SEEDS)
def test_without_staleness_they_are_one_process_with_the_same_tiles(data, name, losses, seed):
    any_valid = valid_placements(MODEL_FACTS[name], st.just(6)).map(lambda one: replace(one, staleness=0))
    ways = data.draw(st.lists(any_valid, min_size=2, max_size=4))
    told, module = recipe("adam", samples_ahead=data.draw(st.sampled_from([0, 2]))), built(name)

    async def main() -> None:
        session = PlacedSession(module, ways[0], told, seconds=delays(seed), losses=losses)
        plain = PlainTiles(list(module), ways[0], told)
        for placement in ways:
            if placement is not ways[0]:
                await session.change(placement)
            plain.change(placement)
            batches = [batch_of(session.next_step + step, placement.batch_size) for step in range(STEPS)]
            for step, batch in enumerate(batches, session.next_step):
                plain.step(step, *batch)
            await session.train(batches)
            assert_same_bits(dict(module.state_dict()), state_of(session.chains, placement))
        await session.stop()

    run_virtually(main)


WHOLE = Rows(0, 4)
CHAIN = Placement(
    version=1,
    blocks=4,
    batch_size=4,
    workers=("edge", "near", "far", "cloud"),
    tiles=tuple(Tile(worker, at, at + 1, WHOLE) for at, worker in enumerate(("edge", "near", "far", "cloud"))),
    sources=(Source("edge", WHOLE),),
)


def test_an_evaluation_takes_no_gradient_and_no_link_that_only_training_needs():
    shared = {0: "near"}
    tiles = (Tile("edge", 0, 4, Rows(0, 2)), Tile("near", 0, 4, Rows(2, 4)))
    halves = replace(
        CHAIN, workers=("edge", "near", "far"), tiles=tiles, owners=dict.fromkeys(range(4), "far") | shared
    )

    async def main() -> None:
        session = PlacedSession(built("dropping"), CHAIN, recipe("sgd"))
        executor = await session.workers["near"].evaluation(session.heard["near"].emit)
        assert {(one.role, one.block) for one in executor.ends["edge"].position.awaited} == {(Role.ROLE_FEATURE, 1)}
        assert not executor.ends["far"].position.awaited
        gradient = Frame(role=Role.ROLE_ERROR_GRADIENT, block=2, placement_version=1, batch_samples=4)
        with pytest.raises(ProtocolError, match="who has none to send"):
            announce(executor.ends["far"], gradient)
        with pytest.raises(ProtocolError, match="waits for something else"):
            executor.ends["edge"].resume(session.executors["edge"].ends["near"].position)
        await executor.stop()
        await session.stop()

        session = PlacedSession(built("dropping"), halves, recipe("sgd"))
        executor = await session.workers["near"].evaluation(session.heard["near"].emit)
        assert set(session.executors["near"].ends) == {"edge", "far"}
        assert set(executor.ends) == {"edge"}, "with whom it exchanges weights, it has nothing to evaluate"
        with pytest.raises(ProtocolError, match="there is no link between 'near' and 'far'"):
            await executor.serve("far", still_stream())
        await executor.stop()
        await session.stop()

    run_virtually(main)


@settings(max_examples=examples(40), deadline=None)
@given(valid_placements(MODEL_FACTS["dropping"]) | chains(), st.data(), LOSSES, SEEDS)
def test_each_workers_announced_stop_reaches_the_first_worker(placement, data, losses, seed):
    busy = {tile.worker for tile in placement.tiles} | {source.worker for source in placement.sources}
    stopping = data.draw(st.lists(st.sampled_from(sorted(busy)), min_size=1, unique=True))

    async def main() -> None:
        session = PlacedSession(built("dropping"), placement, recipe("sgd"), seconds=delays(seed), losses=losses)
        first = session.heard[first_worker(placement)]
        for worker in stopping:
            session.executors[worker].say_stopping()
        heard = first.until(lambda: len(first.stopping) == len(stopping))
        await drive(session.executors, session.keep_linked(), heard)
        assert sorted(first.stopping) == sorted(stopping), "each once, however often it was sent"
        await session.train([batch_of(step, placement.batch_size) for step in range(STEPS)])
        await session.stop()

    run_virtually(main)


def test_a_peer_speaks_of_no_stop_but_of_those_it_passes_on():
    async def main() -> None:
        session = PlacedSession(built("dropping"), CHAIN, recipe("sgd"))
        session.executors["near"].ends["edge"].reports.tell_stopping("nobody")
        with pytest.raises(ProtocolError, match="others pass that on"):
            await session.train([batch_of(0, 4)])
        await session.stop()

    run_virtually(main)


class Raising(nn.Linear):
    """A block that fails in its third forward pass."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.forwards = 0

    def forward(self, value: Tensor) -> Tensor:
        """Raise in the third call."""
        if self.training:
            self.forwards += 1
        if self.forwards == 3:
            raise ValueError("no more")
        return super().forward(value)


def raising(worker: str) -> nn.Sequential:
    """Build a model in which the block of that worker of the chain fails."""
    module = built("dropping")
    place = CHAIN.workers.index(worker)
    module[place] = (
        nn.Sequential(*module[place][:-1], Raising()) if place == 2 else nn.Sequential(module[place], Raising())
    )
    return module


@pytest.mark.parametrize("worker", ["near", "far"])
def test_a_step_that_fails_ends_all_links_of_its_worker_with_its_error(worker):
    async def main() -> None:
        session = PlacedSession(raising(worker), CHAIN, recipe("sgd"))
        at = CHAIN.workers.index(worker)
        neighbours = [CHAIN.workers[at - 1], CHAIN.workers[at + 1]]
        with pytest.raises(ModelError, match=f"step 2 at '{worker}'|block"):
            await session.train([batch_of(step, 4) for step in range(STEPS)])
        assert {name for name, executor in session.executors.items() if executor.has_failed} == {worker}
        for peer in neighbours:
            with pytest.raises(ModelError, match="no more"):
                await session.executors[worker].serve(peer, still_stream())
        assert session.executors[worker].window.done == 2
        await session.stop()

    run_virtually(main)


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(st.data(), LOSSES, SEEDS)
def test_every_worker_logs_each_step_once_and_the_same_for_the_same_data(data, losses, seed):
    any_valid = valid_placements(MODEL_FACTS["dropping"], st.just(6)).map(lambda one: replace(one, staleness=0))
    ways = data.draw(st.lists(any_valid, min_size=1, max_size=3))

    async def main(folder: Path, name: str, seconds: Seconds, losses: list[int]) -> None:
        def log(worker: str) -> StepLog:
            return StepLog(folder, name, worker)

        session = PlacedSession(built("dropping"), ways[0], recipe("sgd"), seconds=seconds, losses=losses, step_log=log)
        for placement in ways:
            if placement is not ways[0]:
                await session.change(placement)
            await session.train([batch_of(session.next_step + step, 6) for step in range(STEPS)])
        await session.stop()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_virtually(lambda: main(folder, "plain", lambda: 0.0, []))
        run_virtually(lambda: main(folder, "disturbed", delays(seed), losses))
        for worker in ways[0].workers:
            busy = [StepPlan(placement, MODEL_FACTS["dropping"]).program(worker) for placement in ways]
            logs = [folder / f"{which}-{worker}.steps" for which in ("disturbed", "plain")]
            if all(busy):
                assert check_steps(*logs) == STEPS * len(ways)
            else:
                assert logs[0].read_text() == logs[1].read_text()
                assert len(logs[0].read_text().splitlines()) == STEPS * sum(map(bool, busy))
