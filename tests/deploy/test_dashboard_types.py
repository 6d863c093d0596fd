"""The dashboards as literals of the type that Grafana itself has for them, for TypeScript to judge."""

import json
import shutil
import subprocess

import pytest

from deploy.grafana.generate import FOLDER
from deploy.grafana.questions import load

VERSIONS = ["@grafana/schema@13", "typescript@7"]
OPTIONS = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"]


def as_grafana_types_it(board):
    """Without what its type does not have: the Prometheus source's own query of an annotation, which Grafana reads, and
    what the SDK gives every dashboard and every kind of variable, which it does not."""
    del board["style"]
    for annotation in board["annotations"]["list"]:
        del annotation["expr"]
    for variable in board["templating"]["list"]:
        for key in ("id", "auto", "auto_min", "auto_count"):
            del variable[key]
    return board


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with TypeScript and Grafana's types."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("types")
    subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", *VERSIONS], cwd=folder, check=True, capture_output=True
    )
    return folder


def judged(folder, board):
    literal = json.dumps(board, indent=1)
    source = f"import type {{ Dashboard }} from '@grafana/schema';\nexport const board: Dashboard = {literal};\n"
    (folder / "board.ts").write_text(source)
    done = subprocess.run(
        ["node_modules/.bin/tsc", *OPTIONS, "board.ts"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_dashboard_is_one_to_grafana(folder, path):
    assert judged(folder, as_grafana_types_it(load(path))) == ""


def test_a_misspelt_key_and_a_wrong_type_are_found(folder):
    board = as_grafana_types_it(load(FOLDER / "edge.json"))
    assert "refreshh" in judged(folder, {**board, "refreshh": "5s"})
    assert "string" in judged(folder, {**board, "title": 5})
