"""`edge-agent predictor`: its output and files, and the errors of wrong input."""

import json

import pytest

from edge_agent.main import app
from edge_agent.planning import installed
from edge_agent.planning.prediction import load_predictor, load_table
from shared.errors import ExitCode, PlanError
from tests.support.commands import command
from tests.support.latency import costs_of, table_of, write_table


@pytest.fixture
def tables(tmp_path):
    return [str(write_table(tmp_path, table_of(f"d{kind}", costs_of(kind)))) for kind in (0, 1, 2, 4)]


@pytest.fixture
def unseen(tmp_path):
    return str(write_table(tmp_path, table_of("new", costs_of(3))))


def test_tables_stand_behind_one_option_or_each_behind_its_own(tables, tmp_path):
    one, each = tmp_path / "one", tmp_path / "each"
    assert "4 devices, 36 sub-models" in command(app, "predictor", "train", "--tables", *tables, "--out", str(one))
    options = [part for table in tables for part in ("--tables", table)]
    command(app, "predictor", "train", "--out", str(each), *options)
    assert load_predictor(one).names == load_predictor(each).names == ("d0", "d1", "d2", "d4")


def test_an_evaluation_for_a_program_says_how_good_the_predictor_is(tables, unseen):
    found = json.loads(
        command(app, "predictor", "evaluate", "--tables", *tables, "--unseen", unseen, "--samples", "8", "--json")
    )
    assert (found["device"], found["used"], found["judged"]) == ("new", 18, 18)
    assert found["predictor"]["within_5"] == 1.0
    assert found["predictor"].keys() == {"within_5", "within_10", "median_error", "worst_error"}


def test_an_evaluation_for_a_person_is_a_table(tables, unseen):
    shown = command(app, "predictor", "evaluate", "--tables", *tables, "--unseen", unseen)
    assert "new: 26 sub-models predicted from 10" in shown
    for column in ("within 5 %", "within 10 %", "median error", "worst error", "100.0 %"):
        assert column in shown


def test_without_the_benchmarks_an_evaluation_is_refused_with_the_place_where_it_is(tables, unseen, monkeypatch):
    monkeypatch.setattr(installed, "entry_points", lambda **_: ())
    with pytest.raises(
        PlanError, match=r"the evaluation of a predictor comes with the benchmarks .* not installed here"
    ):
        command(app, "predictor", "evaluate", "--tables", *tables, "--unseen", unseen)


def test_a_table_is_completed_with_a_predictor(tables, unseen, tmp_path):
    predictor, out = tmp_path / "p", tmp_path / "whole.json"
    command(app, "predictor", "train", "--tables", *tables, "--out", str(predictor))
    command(app, "predictor", "complete", "--predictor", str(predictor), "--table", unseen, "--out", str(out))
    assert load_table(out) == load_table(tmp_path / "new.json"), "there is nothing to add to a whole table"


def test_tables_that_teach_nothing_are_one_sentence_with_its_code(tables, unseen):
    for arguments, sentence in (
        (["--tables", tables[0]], "2 devices or more"),
        (["--tables", tables[0], tables[0]], "names a file twice"),
        (["--tables", tables[0], "/nowhere.json"], "cannot be read"),
    ):
        with pytest.raises(PlanError, match=sentence) as refused:
            command(app, "predictor", "evaluate", *arguments, "--unseen", unseen)
        assert refused.value.exit_code is ExitCode.PLAN
