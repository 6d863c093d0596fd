"""`edge-agent predictor`: what is printed and written, and how wrong input ends."""

import json

import numpy as np
import pytest
import torch

from edge_agent.main import app
from edge_agent.profiling.paper_network import paper_network
from shared.errors import ExitCode, PlanError
from shared.prediction import Measured, load_predictor, load_table
from tests.support.commands import command
from tests.support.latency import costs_of, table_of, write_table


@pytest.fixture
def tables(tmp_path):
    return [str(write_table(tmp_path, table_of(f"d{kind}", costs_of(kind)))) for kind in (0, 1, 2, 4)]


@pytest.fixture
def unseen(tmp_path):
    return str(write_table(tmp_path, table_of("new", costs_of(3))))


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    monkeypatch.setattr("edge_agent.profiling.paper_network.STEPS", 50)


def test_tables_stand_behind_one_option_or_each_behind_its_own(tables, tmp_path):
    one, each = tmp_path / "one", tmp_path / "each"
    assert "4 devices, 36 sub-models" in command(app, "predictor", "train", "--tables", *tables, "--out", str(one))
    options = [part for table in tables for part in ("--tables", table)]
    command(app, "predictor", "train", "--out", str(each), *options)
    assert load_predictor(one).names == load_predictor(each).names == ("d0", "d1", "d2", "d4")


def test_an_evaluation_for_a_program_has_the_predictor_and_every_baseline(tables, unseen):
    found = json.loads(
        command(app, "predictor", "evaluate", "--tables", *tables, "--unseen", unseen, "--samples", "8", "--json")
    )
    assert (found["device"], found["used"], found["judged"]) == ("new", 18, 18)
    assert found["predictor"]["within_5"] == 1.0
    assert found["baselines"].keys() == {"flops", "nearest", "ftpipehd", "network"}
    keys = {"within_5", "within_10", "median_error", "worst_error"}
    assert all(figures.keys() == keys for figures in [found["predictor"], *found["baselines"].values()])


def test_an_evaluation_for_a_person_is_a_table(tables, unseen):
    shown = command(app, "predictor", "evaluate", "--tables", *tables, "--unseen", unseen)
    assert "new: 26 sub-models predicted from 10" in shown
    for line in ("predictor", "flops", "nearest", "ftpipehd", "network"):
        assert line in shown


def test_a_table_is_completed_with_a_predictor(tables, unseen, tmp_path):
    predictor, out = tmp_path / "p", tmp_path / "whole.json"
    command(app, "predictor", "train", "--tables", *tables, "--out", str(predictor))
    command(app, "predictor", "complete", "--predictor", str(predictor), "--table", unseen, "--out", str(out))
    assert load_table(out) == load_table(tmp_path / "new.json"), "there is nothing to add to a whole table"


def test_what_cannot_be_learned_from_is_one_sentence_with_its_code(tables, unseen):
    for arguments, sentence in (
        (["--tables", tables[0]], "2 devices or more"),
        (["--tables", tables[0], tables[0]], "names a file twice"),
        (["--tables", tables[0], "/nowhere.json"], "cannot be read"),
    ):
        with pytest.raises(PlanError, match=sentence) as refused:
            command(app, "predictor", "evaluate", *arguments, "--unseen", unseen)
        assert refused.value.exit_code is ExitCode.PLAN


def test_the_papers_network_learns_and_touches_nobodys_random_state(monkeypatch):
    monkeypatch.setattr("edge_agent.profiling.paper_network.STEPS", 400)
    generator = np.random.default_rng(0)
    layers = generator.integers(0, 2, (60, 6)).astype(np.uint8)
    seconds = np.log(0.01 + layers @ np.linspace(0.001, 0.01, 6))
    known = np.stack([seconds, seconds + 1.0, seconds + 2.0])
    reference = np.arange(10)
    before = torch.random.get_rng_state()
    predicted = paper_network(layers, known, reference, Measured(reference, seconds[:10] + 1.5))
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.median(np.abs(predicted - seconds - 1.5)) < 0.1
