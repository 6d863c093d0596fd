"""The exchange of shared blocks in virtual time: it goes on while blocks are computed, in the runtime as in the simulator."""

import asyncio

import pytest
import torch
from torch import nn

from edge_agent.planning import BlockCosts, BlockSeconds, Linear, PlacementRun, Rates, simulate_placement, step_tasks
from shared.execution.model_facts import facts_of
from shared.model.chain import Chain, build_chain
from shared.model.random_state import random_state
from shared.placement import Link, Placement, Rows, Source, StepPlan, Tile, segments
from tests.support.linked import LinkedSession
from tests.support.paced import noted_segments, paced
from tests.support.placed import recipe
from tests.support.virtual import Wire, run_virtually

pytestmark = pytest.mark.usefixtures("one_thread")
BLOCKS, WIDTH, SAMPLES, STEPS = 12, 160, 8, 12
FORWARD, BACKWARD = 0.06, 0.12
"""Seconds of all blocks on half of the samples."""
HALVES = Placement(
    version=0,
    blocks=BLOCKS,
    batch_size=SAMPLES,
    workers=("edge", "near"),
    tiles=(Tile("edge", 0, BLOCKS, Rows(0, 4)), Tile("near", 0, BLOCKS, Rows(4, 8))),
    sources=(Source("edge", Rows(0, SAMPLES)),),
    owners=dict.fromkeys(range(BLOCKS), "near"),
)
WEIGHT_BYTES = 4.0 * (WIDTH * WIDTH + WIDTH)


def chain_of(module: nn.Module) -> Chain:
    return build_chain(module, torch.zeros(SAMPLES, WIDTH))


def model() -> nn.Sequential:
    with random_state("weights"):
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS)))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    with random_state("batches"):
        return [(torch.randn(SAMPLES, WIDTH), torch.randint(WIDTH, (SAMPLES,))) for _ in range(STEPS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "exchange",
    [
        pytest.param(FORWARD + BACKWARD, id="each way"),
        pytest.param((FORWARD + BACKWARD) / 2, id="both ways", marks=pytest.mark.full),
    ],
)
def test_an_exchange_as_long_as_computing_goes_on_beside_it(exchange):
    """exchange: seconds of all parts, and of all weights."""
    rate = 8 * WEIGHT_BYTES * BLOCKS / exchange
    rates = {Link("edge", "near"): Rates(rate, rate)}
    seconds = BlockSeconds(Linear(FORWARD / BLOCKS), Linear(BACKWARD / BLOCKS), 0.0)
    costs = BlockCosts(
        dict.fromkeys(HALVES.workers, (seconds,) * BLOCKS),
        (4.0 * WIDTH,) * (BLOCKS + 1),
        (WEIGHT_BYTES,) * BLOCKS,
        8.0,
        {},
    )
    facts = facts_of(chain_of(model()))
    step = step_tasks(HALVES, facts, costs, rates)
    simulated = simulate_placement(step, STEPS).seconds_per_step()
    one_after_the_other = FORWARD + BACKWARD + exchange + exchange / BLOCKS
    assert simulated <= 0.75 * one_after_the_other, (
        "the weights of a block come back while the part of the next one goes"
    )

    plan = StepPlan(HALVES, facts)
    done: tuple[float, ...] = ()

    async def main() -> None:
        nonlocal done
        begun = asyncio.get_running_loop().time()
        session = LinkedSession(
            model(),
            HALVES,
            recipe("sgd"),
            computing=lambda worker: paced(worker, step, segments(plan.program(worker))[0]),
            wires=lambda _sender, _receiver: Wire(rate),
            chunk_bytes=1 << 14,
            make_chain=chain_of,
        )
        await session.train(batches())
        done = tuple(moment - begun for moment in session.done_seconds)

    with noted_segments():
        run_virtually(main)
    measured = PlacementRun(done, done, 0).seconds_per_step()
    assert measured <= 1.1 * simulated
    assert measured <= 0.75 * one_after_the_other
