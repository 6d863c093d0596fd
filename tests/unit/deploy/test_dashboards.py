"""The dashboards in the tree: the generator's output, in words that Grafana and Prometheus know."""

import json
import re

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.generate import dashboards
from deploy.grafana.questions import load, other_questions, panel_questions, panels
from tests.conftest import ROOT
from tests.unit.docs.test_metrics import all_exported

BOARDS = sorted(dashboards())
boards = pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
SUFFIXES = ("_bucket", "_sum", "_count")


def questions(board):
    asked = [question for panel in panels(board) for question in panel_questions(panel, 5)]
    return [*asked, *other_questions(board, 5)]


@boards
def test_the_file_is_what_the_generator_writes(path):
    assert path.read_text() == dashboards()[path], "run `make dashboards`"


@boards
def test_every_key_is_one_that_grafana_knows(path):
    register_default_plugins()
    board = load(path)
    assert json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder)) == board


@boards
def test_every_query_is_promql_over_metrics_that_exist(path):
    known = all_exported().keys()
    for question in questions(load(path)):
        promql_parser.parse(question.query)
        for name in re.findall(r"\b(isthmus_\w+|process_\w+)\{", question.query):
            base = name
            for suffix in SUFFIXES:
                base = base.removesuffix(suffix)
            assert name in known or base in known, f"{question.where} asks for {name}"


@boards
def test_no_variable_is_left_open(path):
    assert not [question for question in questions(load(path)) if "$" in question.query]


@boards
def test_panels_do_not_overlap_and_fit_the_grid(path):
    taken = set()
    for panel in load(path)["panels"]:
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not cells & taken, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        taken |= cells


def test_every_metric_of_ours_is_on_a_dashboard():
    text = "".join(path.read_text() for path in BOARDS)
    ours = {name for name in all_exported() if name.startswith("isthmus_")}
    assert not {name for name in ours if name not in text}


def test_jobs_are_those_that_prometheus_is_told():
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    rules = (ROOT / "deploy" / "prometheus" / "rules" / "alerts.yml").read_text()
    named = set(re.findall(r'job=\\?"([\w-]+)', "".join(path.read_text() for path in BOARDS) + rules))
    assert named == {job["job_name"] for job in scraped}
