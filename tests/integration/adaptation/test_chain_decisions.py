"""A chain that is cut elsewhere while it trains: by an operator, exactly, and by the engine that has a file of the chain."""

import asyncio
import json
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from edge_agent.adaptation.engine_inputs import load_run_profile, make_engine
from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import SCHEMA
from isthmus import run_training
from shared.errors import ConfigError, ExitCode, PlanError
from shared.placement import cuts_of, held_blocks
from tests.support.experiments import flags
from tests.support.placement_kinds import addresses_of, running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.planning.chains import along
from tests.support.running import Listening, cut_at, edge_config

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("edge", "near", "far")
BLOCKS = 4


def chain_flags(servers, cuts):
    """A run on three workers at these cuts."""
    addresses = addresses_of(servers)
    trainers = [{"name": name, "address": addresses[name]} for name in NAMES[1:]]
    ends = (0, *cuts, BLOCKS)
    blocks = [f'placement.{name}="{first}:{stop}"' for name, first, stop in zip(NAMES, ends, ends[1:], strict=False)]
    listed = ", ".join(f'{{name="{each["name"]}", address="{each["address"]}"}}' for each in trainers)
    return [f"trainers=[{listed}]", *blocks]


def chain_file(path, quick_cuts, **changes):
    """A file that finds one partition a hundred times as quick as any other."""
    ends = (0, *quick_cuts, BLOCKS)
    quick = list(pairwise(ends))
    sizes = [1000.0] * (BLOCKS + 1)
    link = {"uplink": 1e9, "downlink": 1e9, "round_trip_seconds": 0.0}
    document = {
        "schema": SCHEMA,
        "model": "cnn",
        "batch_size": edge_config(*flags("cnn", "sgd")).data.batch_size,
        "blocks": [{"name": name, "bytes": 1000} for name in changes.pop("blocks")],
        "feature_bytes": sizes,
        "gradient_bytes": sizes,
        "encode": [0.0, 0.0],
        "workers": [
            {
                "name": name,
                "replayed": [
                    [*run, 0.01 if run == quick[place] else 1.0] for run in combinations(range(BLOCKS + 1), 2)
                ],
            }
            for place, name in enumerate(NAMES)
        ],
        "links": along(NAMES, [link] * 2),
        "links_stay": True,
    }
    path.write_text(json.dumps(document | changes))
    return f'engine.profile="{path}"'


def block_names():
    from edge_agent.experiment.workload import Workload

    return [block.name for block in Workload(edge_config(*flags("cnn", "sgd"))).chain.blocks]


class Recutting(Listening):
    """Has the chain cut elsewhere as soon as the cuts before have been seen."""

    def __init__(self, cuts):
        super().__init__(progressed=self.move_cuts, session_opened=self.open)
        self.left, self.deployer, self.seen = list(cuts), None, []

    def open(self, deployer):
        self.deployer = deployer

    def move_cuts(self, progress):
        if not progress.steps or self.deployer.moving or (now := cuts_of(self.deployer.placement)) in self.seen:
            return
        self.seen.append(now)
        if self.left:
            cut_at(self.deployer, *self.left.pop(0))


@pytest.mark.first_case
@pytest.mark.parametrize("model", ["cnn", "tied"])
async def test_the_weights_are_those_of_one_process_whatever_the_cuts(model):
    chosen = [*flags(model, "adamw"), "training.max_steps=40", "training.epochs=5"]
    recutting = Recutting([(2, 3), (1, 3), (1, 2)])
    async with running_trainers() as servers:
        result = await run_training(edge_config(*chosen, *chain_flags(servers, (1, 2))), recutting)
    assert recutting.seen[:3] == [(1, 2), (2, 3), (1, 3)]
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


async def trained_until(is_there, more, *flags_of_run):
    """Train on three workers until the placement is as wanted. more: flags for the addresses of the trainers."""
    reached, deployers = asyncio.Event(), []

    def look(_progress):
        if deployers and not deployers[0].moving and is_there(deployers[0].placement):
            reached.set()

    endless = ["training.max_steps=100000", "training.epochs=100000", "training.evaluate_every_epochs=0"]
    async with running_trainers() as servers, asyncio.timeout(120):
        config = edge_config(*flags("cnn", "sgd"), *more(servers), *flags_of_run, *endless)
        run = asyncio.create_task(run_training(config, Listening(look, deployers.append)))
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        run.cancel()
        await asyncio.gather(run, waiting, return_exceptions=True)
    return reached.is_set()


@pytest.mark.slow
async def test_the_engine_cuts_the_chain_where_it_is_quickest(tmp_path):
    engine = chain_file(tmp_path / "chain.json", (1, 2), blocks=block_names())
    assert await trained_until(
        lambda placement: cuts_of(placement) == (1, 2), lambda servers: chain_flags(servers, (2, 3)), engine
    )


async def test_a_run_that_names_no_placement_begins_with_the_plan(tmp_path):
    engine, begun = chain_file(tmp_path / "chain.json", (1, 2), blocks=block_names()), []
    watching = Listening(session_opened=lambda deployer: begun.append(deployer.placement))
    async with running_trainers() as servers:
        chosen = [*flags("cnn", "sgd"), chain_flags(servers, (1, 2))[0], engine, "training.max_steps=2"]
        await run_training(edge_config(*chosen), watching)
    assert cuts_of(begun[0]) == (1, 2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 7}, "the profile is for batches of 7"),
        ({"blocks": [{"name": "a", "bytes": 1}] * BLOCKS}, "the profile is of cnn with the blocks a, a, a, a"),
    ],
)
async def test_a_file_of_something_else_is_refused_before_anything_is_asked(tmp_path, changes, sentence):
    names = block_names()
    path = tmp_path / "chain.json"
    engine = chain_file(path, (1, 2), blocks=names)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(PlanError, match=sentence) as refused:
        await run_training(edge_config(*flags("cnn", "sgd"), *nowhere((1, 2)), engine))
    assert refused.value.exit_code is ExitCode.PLAN


def test_what_may_not_be_and_what_gradients_take_is_known_before_anything_is_chosen(tmp_path):
    engine = chain_file(tmp_path / "chain.json", (1, 2), blocks=block_names())
    chosen = [*flags("cnn", "sgd"), *nowhere((1, 2)), engine]
    experiments = [Experiment(edge_config(*chosen, *more)) for more in ([], ['deployment.downlink_codec="uniform8"'])]
    chains = [make_engine(experiment, load_run_profile(experiment)).question.profile for experiment in experiments]
    assert chains[1].gradient_bytes[1] == chains[0].gradient_bytes[1] / 4
    # As where words can be read off what the first two blocks make.
    experiment = experiments[0]
    experiment.chain = replace(experiment.chain, readable=(1.0, 1.0))
    masked = load_run_profile(experiment).worker("edge").replayed
    assert experiment.chain.first_boundary == 3
    assert np.isnan(masked[0, :3]).all()
    assert np.isfinite(masked[0, 3:]).all()


async def test_a_file_of_other_workers_is_refused(tmp_path):
    path = tmp_path / "chain.json"
    engine = chain_file(path, (1, 2), blocks=block_names())
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document).replace('"far"', '"gpu"'))
    with pytest.raises(
        PlanError, match="the stages are edge, near, gpu, and the placement's workers are edge, near, far"
    ):
        await run_training(edge_config(*flags("cnn", "sgd"), *nowhere((1, 2)), engine))


async def test_a_chain_file_needs_a_chain(tmp_path):
    engine = chain_file(tmp_path / "chain.json", (1, 2), blocks=block_names())
    labels_stay = [
        'trainers=[{name="near", address="127.0.0.1:1"}]',
        'placement.edge=["0:1", "3:"]',
        'placement.near="1:3"',
    ]
    with pytest.raises(ConfigError, match=r"engine.profile is set and the placement is not of workers that each run"):
        await run_training(edge_config(*flags("cnn", "sgd"), *labels_stay, engine))


def nowhere(cuts):
    """The same run at trainers that are not asked."""
    ends = (0, *cuts, BLOCKS)
    blocks = [f'placement.{name}="{first}:{stop}"' for name, first, stop in zip(NAMES, ends, ends[1:], strict=False)]
    return [
        'trainers=[{name="near", address="127.0.0.1:1"}, {name="far", address="127.0.0.1:1"}]',
        *blocks,
    ]


@pytest.mark.slow
async def test_a_worker_at_hand_without_blocks_gets_some_where_that_is_quickest(tmp_path):
    engine = chain_file(tmp_path / "chain.json", (1, 2), blocks=block_names())

    def without_near(servers):
        return [flag for flag in chain_flags(servers, (2, 2)) if not flag.startswith("placement.near")]

    assert await trained_until(
        lambda placement: held_blocks(placement, "near"), without_near, "placement.near=[]", engine
    )
