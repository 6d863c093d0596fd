"""`edge-agent placement`: its output for a person and for a program, and the errors of wrong input."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edge_agent.commands.placement_tables import render
from edge_agent.experiment.placement_report import report_on
from edge_agent.experiment.workload import Workload
from edge_agent.main import app
from shared.errors import ConfigError, ExitCode, IsthmusError
from shared.placement import parse_placement
from tests.support.experiments import flags
from tests.support.running import edge_config

TRAINERS = """\
[[trainers]]
name = "near"
address = "near.example.org:50051"
[[trainers]]
name = "far"
address = "far.example.org:50051"
"""
CHAIN = """\
[placement]
edge = "0:1"
near = "1:3"
far = "3:"
"""
PERMITTED = '[privacy]\ninputs_to = ["near"]\n'


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "edge.toml"
        path.write_text(TRAINERS + text)
        return str(path)

    return write


def shared_file(tmp_path, **keys):
    tiles = [
        {"worker": "edge", "blocks": [0, 3], "samples": [0, 8]},
        {"worker": "near", "blocks": [0, 3], "samples": [8, 32]},
        {"worker": "far", "blocks": [3, 5]},
    ]
    owners = {"0": "edge", "1": "near", "2": "far"}
    document = {"schema": "isthmus.placement/v1", "workers": ["edge", "near", "far"], "tiles": tiles, "owners": owners}
    path = tmp_path / "P.json"
    path.write_text(json.dumps(document | keys))
    return str(path)


def shown(*arguments):
    done = CliRunner().invoke(app, ["placement", *arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def read(*arguments):
    return json.loads(shown("--json", *arguments))


def test_a_program_reads_all_of_it_and_the_placement_back(config):
    document = read("--config", config(CHAIN))
    assert document["schema"] == "isthmus.placement-report/v1"
    assert document["blocks"] == ["stem", "layers.0", "layers.1", "layers.2", "classifier"]
    placement = parse_placement(document["placement"], "there", 5, 32)
    assert [(tile.worker, tile.first, tile.stop) for tile in placement.tiles] == [
        ("edge", 0, 1),
        ("near", 1, 3),
        ("far", 3, 5),
    ]
    crossing = {(one["from"], one["to"], one["cargo"], one["block"]): one["bytes"] for one in document["crossings"]}
    assert crossing == {
        ("edge", "near", "feature", 1): 32 * 16 * 8 * 8 * 4,
        ("near", "edge", "error_gradient", 1): 32 * 16 * 8 * 8 * 4,
        ("near", "far", "feature", 3): 32 * 32 * 4 * 4 * 4,
        ("far", "near", "error_gradient", 3): 32 * 32 * 4 * 4 * 4,
        ("edge", "far", "label", 5): 32,
    }
    assert [one["worker"] for one in document["memory"]] == ["edge", "near", "far"]
    assert {one["worker"]: (one["inputs"], one["labels"], one["outputs"]) for one in document["sees"]} == {
        "edge": (True, True, False),
        "near": (False, False, False),
        "far": (False, True, True),
    }
    told = {one["worker"]: one["gradients_tell"] for one in document["sees"]}
    assert told == {"edge": [], "near": ["labels"], "far": []}


def test_the_output_can_be_given_back_as_a_file(config, tmp_path):
    path = tmp_path / "again.json"
    first = read("--config", config(CHAIN))
    path.write_text(json.dumps(first["placement"]))
    again = read("--config", config(""), "--file", str(path))
    assert again == first


def test_a_file_is_shown_in_the_place_of_what_the_configuration_says(config, tmp_path):
    file = shared_file(tmp_path)
    for text in (CHAIN, "[deployment]\ncut = 2\n", ""):
        document = read("--config", config(text + PERMITTED), "--file", file)
        assert len(document["placement"]["tiles"]) == 3


def test_without_a_configuration_the_default_is_shown():
    assert read()["placement"]["workers"] == ["edge", "trainer"]


def test_where_all_blocks_are_here_nothing_crosses_though_a_trainer_is_configured():
    document = read("--set", "deployment.cut=5")
    assert document["crossings"] == []
    assert {one["worker"]: (one["labels"], one["outputs"], one["weights"]) for one in document["sees"]} == {
        "edge": (True, True, [0, 1, 2, 3, 4]),
        "trainer": (False, False, []),
    }
    assert "nothing crosses in a step" in shown("--set", "deployment.cut=5")


def test_a_person_sees_a_field_for_every_worker_as_wide_as_its_samples(config, tmp_path):
    lines = shown("--config", config(PERMITTED), "--file", shared_file(tmp_path)).splitlines()
    stem, _, _, last, head = lines[1:6]
    assert stem.split("|")[1].strip() == "edge"
    assert stem.split("|")[3].strip() == "near [8, 32)"
    assert 3 * len(stem.split("|")[1] + "||") == len(stem.split("|")[3] + "||"), "8 samples of 32 and 24 of them"
    assert stem.endswith("updated by edge")
    assert [line.split("|")[1].strip() for line in (last, head)] == ["far", "far"]
    assert lines[6] == "samples from edge; loss at far; K = 0"


def test_leaks_by_gradients_are_shown_for_an_owner_that_sees_no_sample_itself(config, tmp_path):
    tiles = [{"worker": "edge", "blocks": [0, 3]}, {"worker": "far", "blocks": [3, 5]}]
    file = shared_file(tmp_path, tiles=tiles, owners={"0": "near"})
    with pytest.raises(ConfigError, match=r"the gradient of block 0 \(stem\) .* 'near'.* privacy\.gradients_to"):
        shown("--config", config(""), "--file", file)
    permitted = config('[privacy]\ngradients_to = ["near"]\n')
    near = read("--config", permitted, "--file", file)["sees"][1]
    assert (near["inputs"], near["gradients_tell"]) == (False, ["inputs"])
    told = [
        line.split("│")[5].strip()
        for line in shown("--config", permitted, "--file", file).splitlines()
        if "│ near" in line
    ]
    assert told[-1] == "inputs"


def test_each_worker_has_a_colour_of_its_own():
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard", record=True)
    trainers = 'trainers=[{name="near", address="a:1"}, {name="far", address="b:1"}]'
    placed = (trainers, "placement.edge=0:1", "placement.near=1:2", "placement.far=2:")
    render(report_on(Workload(edge_config(*flags("mlp", "sgd"), *placed))), console)
    fields = [line for line in console.export_text(styles=True).splitlines() if "|" in line]
    assert ["\x1b[30;42m" in line for line in fields] == [True, False, False, False]
    assert ["\x1b[30;46m" in line for line in fields] == [False, True, False, False]
    assert ["\x1b[30;45m" in line for line in fields] == [False, False, True, True]


@pytest.mark.parametrize("width", [80, 120])
def test_no_text_that_a_reader_needs_is_cut_off(width, config, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = shown("--config", config(PERMITTED), "--file", shared_file(tmp_path))
    assert "…" not in text
    for whole in ("weight gradient", "error gradient", "[8, 32)", "58,384", "2 layers.1"):
        assert whole in text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[placement]\nedge = "0:1"\nnear = "2:"\n', "nobody has block 1 on samples [0, 32)"),
        ('[placement]\nedge = "0:2"\nnear = "1:"\n', "two workers have block 1 on samples [0, 32)"),
        ('[placement]\nedge = "0:2"\nnera = "2:"\n', "placement names 'nera', which is not configured"),
        ('[[trainers]]\nname = "near"\naddress = "a:1"\n', "two are named 'near'"),
        ('[placement]\nnear = "0:"\n', "raw samples would go from 'edge' to 'near'"),
        ('[placement]\nedge = "two"\n', 'placement.edge is "two"; it must be a range of blocks'),
        ('[placement]\nfile = "nowhere.json"\n', "nowhere.json"),
    ],
)
def test_an_invalid_configuration_ends_with_a_sentence_and_a_documented_code(text, sentence, config):
    with pytest.raises(ConfigError) as refused:
        shown("--config", config(text))
    assert sentence in str(refused.value)
    assert refused.value.exit_code == ExitCode.CONFIG


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"owners": {}}, "block 0 is shared by edge, near and has no owner"),
        ({"workers": ["edge", "near", "far", "near"]}, "worker 'near' is named twice"),
        ({"workers": ["edge", "near", "cloud"]}, "worker 'cloud' is not configured; there are edge, near, far"),
        ({"workers": ["edge", "near"]}, "a tile names worker 'far'; the workers are edge, near"),
        ({"owners": {"0": "cloud", "1": "near", "2": "far"}}, "the owner of block 0 names worker 'cloud'"),
        ({"labels": "edge"}, "the loss is to be computed by edge; it is computed where the last block is, by far"),
        ({"tiles": [{"worker": "edge", "blocks": [0, 5], "samples": [0, 31]}]}, "on samples [31, 32)"),
    ],
)
def test_an_invalid_file_ends_with_a_sentence_and_a_documented_code(keys, sentence, config, tmp_path):
    file = shared_file(tmp_path, **keys)
    with pytest.raises(ConfigError) as refused:
        shown("--config", config(PERMITTED), "--file", file)
    assert sentence in str(refused.value)


def test_a_part_with_too_few_samples_is_refused(config, tmp_path):
    file = shared_file(tmp_path)
    path = tmp_path / "one.json"
    path.write_text((tmp_path / "P.json").read_text().replace("8", "31"))
    assert shown("--config", config(PERMITTED), "--file", file)
    with pytest.raises(ConfigError, match=r"'near' has 1 sample of block 0 \(stem\), which needs 2 at least"):
        shown("--config", config(PERMITTED), "--file", str(path))


@pytest.mark.parametrize("text", ["{", "no JSON", '{"schema": "isthmus.placement/v2"}', "[]", '"' + "x" * 100_000])
def test_a_file_that_is_no_placement_is_refused(text, config, tmp_path):
    path = tmp_path / "P.json"
    path.write_text(text)
    with pytest.raises(IsthmusError) as refused:
        shown("--config", config(""), "--file", str(path))
    assert refused.value.exit_code == ExitCode.CONFIG
    assert str(path) in str(refused.value)
