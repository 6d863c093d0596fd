"""A planner that an operator chooses during a run."""

from dataclasses import replace

import pytest

from tests.support.planning.decisions import Deployer, Run


@pytest.mark.slow
async def test_the_fixed_planner_holds_what_there_is_and_greedy_follows_again():
    run = Run()
    await run.watch(3, 40.0)
    await run.loop.use("fixed")
    await run.watch(900, 1.0, 1 / 32)
    assert run.deployer.deployment == Deployer().deployment, "however slow the link becomes"
    assert not run.deployer.moving
    await run.loop.use("greedy")
    await run.watch(900, 1.0, 1 / 32)
    assert run.deployer.moving


async def test_pins_go_before_what_is_held():
    run = Run(codec="uniform8", staleness=2)
    await run.watch(3, 40.0)
    held = run.deployer.deployment
    assert held.codec == "uniform8"
    await run.loop.use("fixed")
    await run.loop.pin(None, 32, None)
    await run.watch(3, 40.0)
    assert run.deployer.deployment == replace(held, codec="fp32")


@pytest.mark.slow
async def test_the_fixed_planner_holds_the_layout_that_runs_and_not_the_one_that_was_proposed():
    run = Run()
    await run.watch(3, 40.0)
    held = run.deployer.deployment
    await run.watch(900, 1.0, 1 / 32)
    assert run.deployer.moving
    await run.loop.use("fixed")
    await run.watch(1, 1.0, 1 / 32)
    assert not run.deployer.moving, "the request is withdrawn"
    await run.watch(900, 1.0, 1 / 32)
    assert (run.deployer.deployment, run.deployer.moving) == (held, False)
