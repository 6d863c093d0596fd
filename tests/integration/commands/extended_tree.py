"""Checks in a tree in which a reader has followed the page on extending; test_extending.py makes it and runs this."""

import itertools

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from edge_agent.main import app
from edge_agent.planning import (
    Engine,
    LinkTrace,
    Question,
    Rates,
    SearchSpace,
    Trace,
    best,
    conditions_of,
    parse_profile,
    profile_to_json,
    simulate,
    stacked,
)
from shared.execution.split import Scheme, split_session
from shared.model.chain import build_chain
from shared.registry import OptimizerConfig, codec_of_bits
from shared.training.recipe import Recipe, ScheduleConfig
from tests.support.planning.cases import small_profile
from tests.support.planning.chains import chain_document

CPU = torch.device("cpu")


def recipe(**changes) -> Recipe:
    told = {"optimizer": OptimizerConfig(learning_rate=0.1), "schedule": ScheduleConfig(), "loss": "mse", "seed": 0}
    return Recipe(**told | {"steps_per_epoch": 8, "total_steps": 8} | changes)


def chain():
    torch.manual_seed(3)
    return build_chain(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), torch.ones(8, 6))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator)


def simulated(scheme, told, steps):
    """The module after so many steps across a cut, and each step's loss."""
    built = chain()
    in_process = split_session(built, (2,), told, scheme, CPU)
    losses = in_process.train(0, steps, (batch(step) for step in range(steps)))
    return built.module.state_dict(), [loss.loss for loss in losses]


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_codec_trains_and_is_exchanged_for_others():
    assert codec_of_bits(8, like="signs1") == "uniform8"
    assert codec_of_bits(32, like="signs1") == "fp32"
    trained, _ = simulated(Scheme(codec="signs1"), recipe(), 2)
    assert not same(trained, simulated(Scheme(), recipe(), 2)[0])


@pytest.mark.parametrize(
    "command", [("plan", "--uplink", "8mbit", "--downlink", "8mbit"), ("simulate", "--trace", "link.csv")]
)
def test_commands_have_the_planner(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile.json").write_text(profile_to_json(small_profile()))
    (tmp_path / "link.csv").write_text("second,bytes_per_second\n0,1000000\n60,1000000\n")
    done = CliRunner().invoke(app, [*command, "--profile", "profile.json", "--planner", "halves", "--json"])
    assert done.exit_code == 0, done.output
    assert '"cut": 2' in done.stdout, "of four blocks"


def test_a_family_is_planned_simulated_and_gone_to_by_the_engine():
    document = chain_document(8, 3, seed=3)
    early, late = [0.01] * 5 + [0.5] * 3, [0.5] * 5 + [0.01] * 3
    for worker, costs in zip(document["workers"], ([0.05] * 8, late, early), strict=True):
        worker["replayed"] = [[i, j, sum(costs[i:j])] for i, j in itertools.combinations(range(9), 2)]
    profile = parse_profile(document, "chain")
    edge, near, far = profile.names
    turned = stacked(profile, (2, 5), 2, (32, 32), (edge, far, near))
    start = stacked(profile, (3, 5), 2, (32, 32))
    space = SearchSpace((32,), 2)
    fast = Rates(1e9, 1e9)
    quick = conditions_of(profile, {(edge, near): fast, (edge, far): fast, (near, far): fast})
    assert best(Question(profile, space), quick).layout == turned
    links = [LinkTrace(Trace.constant(1e9), Trace.constant(1e9)) for _ in range(2)]
    run = simulate(profile, links, start, 120.0, Engine(profile, space, start, total_steps=10_000))
    assert run.switches[-1].layout == turned


def test_a_loss_trains():
    _, losses = simulated(Scheme(), recipe(loss="huber"), 2)
    inputs, labels = batch(0)
    assert losses[0] == pytest.approx(nn.functional.huber_loss(chain().module(inputs), labels).item())


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_backward_policy_trains(staleness):
    dropped, losses = simulated(Scheme(staleness, "dropping"), recipe(), 6)
    assert len(losses) == 6
    is_asked = staleness > 0
    assert same(dropped, simulated(Scheme(staleness), recipe(), 6)[0]) == (not is_asked)
