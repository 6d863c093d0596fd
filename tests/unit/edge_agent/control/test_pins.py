"""Pins: the values that an operator fixes, with an engine that chooses the rest and without an engine."""

from dataclasses import replace
from itertools import pairwise

import grpc
import pytest

from edge_agent.control.pins import Pinning, Pins
from edge_agent.deployment_config import DeploymentConfig
from edge_agent.training.choosers import Chooser
from shared.errors import ConfigError, PlanError
from shared.placement import Placement, Rows, Source, Tile, at_cuts, cuts_of
from shared.transport.rpc.status import StatusError
from tests.support.planning.decisions import Deployer, Run

WHOLE = Rows(0, 8)


async def pinning(deployer, decisions=None, **configured):
    made = Pinning(DeploymentConfig(**configured))
    await made.begin(deployer, decisions)
    return made


async def test_without_an_engine_a_pin_changes_only_the_pinned_values():
    deployer = Deployer(edge_blocks=1, staleness=3, codec="fp32")
    pins = await pinning(deployer)
    await pins.pin(Pins(bits=8))
    assert (deployer.deployment.codec, deployer.deployment.staleness, deployer.wanted) == ("uniform8", 3, None)
    await pins.pin(Pins((2,), staleness=1))
    assert (deployer.wanted, deployer.chosen_by) == (2, Chooser.OPERATOR)
    assert pins.now == Pins((2,), 8, 1), "what was pinned before stays pinned"
    deployer.move_if_requested()
    assert (deployer.deployment.codec, deployer.deployment.staleness) == ("uniform8", 1)
    await pins.release(["bits"])
    assert pins.now == Pins((2,), None, 1)
    assert (deployer.deployment.codec, deployer.moving) == ("uniform8", False)


async def test_pinned_values_are_requested_again_after_training_went_back():
    deployer = Deployer(edge_blocks=1, staleness=3, codec="fp32")
    before = deployer.placement
    pins = await pinning(deployer)
    await pins.pin(Pins((2,), 8))
    deployer.move_if_requested()
    deployer.placement = before
    pins.enforce()
    deployer.move_if_requested()
    assert (deployer.deployment.codec, deployer.deployment.edge_blocks) == ("uniform8", 2)


async def test_where_the_operator_places_the_blocks_nothing_is_pinned_any_more():
    deployer = Deployer(edge_blocks=1)
    pins = await pinning(deployer)
    await pins.pin(Pins((2,)))
    pins.end()
    deployer.move_if_requested(done=False)
    pins.enforce()
    assert not deployer.moving


@pytest.mark.parametrize("codec", ["mbq-adaptive", ((0, "mbq2"), (4, "mbq4"))])
async def test_bits_that_follow_a_schedule_cannot_be_pinned(codec):
    pins = await pinning(Deployer(), codec=codec)
    with pytest.raises(StatusError, match=r"bits follow the schedule in deployment\.codec") as refused:
        pins.check(Pins(bits=8))
    assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
    pins.check(Pins(staleness=1))


async def test_a_k_that_follows_a_schedule_cannot_be_pinned():
    pins = await pinning(Deployer(), staleness=((0, 1), (4, 2)))
    with pytest.raises(StatusError, match=r"K follows the schedule in deployment\.staleness") as refused:
        pins.check(Pins(staleness=1))
    assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
    pins.check(Pins((1,)))


async def test_with_an_engine_an_unmeasured_value_is_refused_and_changes_nothing():
    run = Run()
    pins = await pinning(run.deployer, run.loop)
    await pins.pin(Pins((2,)))
    with pytest.raises(PlanError):
        await pins.pin(Pins((9,)))
    assert pins.now == Pins((2,))
    assert run.deployer.wanted == 2


@pytest.mark.slow
async def test_a_pin_before_the_link_was_measured_holds_too():
    run = Run()
    pins = await pinning(run.deployer, run.loop)
    await pins.pin(Pins((2,), 8, 1))
    run.deployer.move_if_requested()
    await run.loop.look(run, 1.0)
    await run.watch(900, 1.0, 1 / 32)
    assert (run.deployer.deployment.edge_blocks, run.deployer.moving) == (2, False)


class TestChains:
    """The cuts of a chain."""

    async def test_without_an_engine_the_blocks_move_to_the_pinned_cuts(self):
        deployer = ChainDeployer((1, 2))
        pins = await pinning(deployer)
        pins.check(Pins(cuts=(2, 3)))
        await pins.pin(Pins(cuts=(2, 3)))
        assert (cuts_of(deployer.placement), pins.now) == ((2, 3), Pins(cuts=(2, 3)))
        deployer.placement = at_cuts(deployer.placement, (1, 3))
        pins.enforce()
        assert cuts_of(deployer.placement) == (2, 3), "as where training went back"
        await pins.release(["cuts"])
        assert pins.now == Pins()

    @pytest.mark.parametrize("cuts", [(2,), (3, 2), (2, 2), (4, 2)])
    async def test_cuts_that_the_chain_cannot_have_are_refused(self, cuts):
        with pytest.raises(ConfigError, match="with 4 blocks on 3 workers there must be 2"):
            (await pinning(ChainDeployer((1, 2)))).check(Pins(cuts=cuts))

    async def test_with_a_trainer_left_out_the_cuts_wait_until_it_is_back(self):
        deployer = ChainDeployer((1, 2))
        pins = await pinning(deployer)
        await pins.pin(Pins(cuts=(2, 3)))
        whole, deployer.placement = deployer.placement, without_far(deployer.placement)
        pins.enforce()
        assert cuts_of(deployer.placement) == (2,)
        deployer.placement = at_cuts(whole, (1, 3))
        pins.enforce()
        assert cuts_of(deployer.placement) == (2, 3)


def without_far(placement):
    """Return the same chain without its last worker."""
    tiles = (Tile("edge", 0, 2, WHOLE), Tile("near", 2, 4, WHOLE))
    return replace(placement, workers=("edge", "near"), tiles=tiles)


class ChainDeployer(Deployer):
    """A deployer that moves the blocks of a chain of three at once."""

    def __init__(self, cuts):
        super().__init__()
        workers = ("edge", "near", "far")
        tiles = (Tile(name, *run, WHOLE) for name, run in zip(workers, pairwise((0, *cuts, 4)), strict=True))
        self.placement = Placement(0, 4, 8, workers, tuple(tiles), (Source("edge", WHOLE),))

    def want(self, placement, by, _give_up_seconds=None):
        self.placement, self.chosen_by = placement, by
        return True
