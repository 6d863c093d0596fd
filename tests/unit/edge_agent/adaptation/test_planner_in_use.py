"""The planner that an operator sets while a run goes on."""

import pytest

from shared.errors import PlanError
from tests.support.planning.decisions import Deployer, Run


def test_the_fixed_planner_holds_what_there_is_and_greedy_follows_again():
    run = Run()
    run.watch(3, 40.0)
    run.loop.use("fixed")
    run.watch(900, 1.0, 1 / 32)
    assert run.deployer.deployment == Deployer().deployment, "however slow the link becomes"
    assert not run.deployer.moving
    run.loop.use("greedy")
    run.watch(900, 1.0, 1 / 32)
    assert run.deployer.moving


def test_jointdnn_chooses_once_and_pins_go_before_it():
    run = Run(codec="uniform8", staleness=2)
    with pytest.raises(PlanError, match="the link has not been measured yet"):
        run.loop.use("jointdnn")
    assert run.loop.planner == "greedy"
    run.watch(3, 40.0)
    run.loop.use("jointdnn")
    run.watch(3, 40.0)
    if run.deployer.moving:
        run.deployer.move_if_requested()
    assert (run.deployer.deployment.staleness, run.deployer.deployment.codec) == (0, "fp32")
    run.loop.pin(bits=8)
    run.watch(3, 40.0)
    assert (run.deployer.deployment.staleness, run.deployer.deployment.codec) == (0, "uniform8")
