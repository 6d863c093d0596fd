"""Placements that cannot be, or may not be: each ends with one sentence and a documented code, and leaves no session behind."""

import json
from contextlib import ExitStack

import pytest

from cloud_trainer.main import app as trainer_app
from shared.errors import ExitCode
from tests.support.commands import assert_one_sentence, command
from tests.support.experiments import flags
from tests.support.placement_kinds import flags_of, flags_of_document, permitted, trainers_flag
from tests.support.running import run_agent, trainer_process

NOBODY = dict.fromkeys(("near", "far"), "127.0.0.1:1")
TWO = trainers_flag(NOBODY, ["near", "far"])
DIVIDED = {
    "schema": "isthmus.placement/v1",
    "workers": ["edge", "near"],
    "tiles": [
        {"worker": "edge", "blocks": [0, 2], "samples": [0, 1]},
        {"worker": "near", "blocks": [0, 2], "samples": [1, 32]},
        {"worker": "near", "blocks": [2, 4]},
    ],
    "owners": {"0": "near", "1": "near"},
}
SHARED_BY_NOBODY = {
    "schema": "isthmus.placement/v1",
    "workers": ["edge", "near"],
    "tiles": [
        {"worker": "edge", "blocks": [0, 2], "samples": [0, 16]},
        {"worker": "near", "blocks": [0, 2], "samples": [16, 32]},
        {"worker": "near", "blocks": [2, 4]},
    ],
}
ELSEWHERE = {
    "schema": "isthmus.placement/v1",
    "workers": ["near", "edge"],
    "tiles": [{"worker": "near", "blocks": [0, 2]}, {"worker": "edge", "blocks": [2, 4]}],
    "sources": [{"worker": "near", "samples": [0, 32]}],
}
INPUTS_TO_NEAR = 'privacy.inputs_to=["near"]'


def refused(code, *says, placed):
    """Run an agent that has to end so."""
    done = run_agent("run", *(f"--set={flag}" for flag in [*flags("cnn", "sgd", "compute.threads=1"), *placed]))
    assert_one_sentence("edge-agent", done, code, *says)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("placed", "says"),
    [
        ([TWO, "placement.edge=0:1", "placement.fear=1:"], "placement names 'fear', which is not configured"),
        (['trainers=[{name="near", address="a:1"}, {name="near", address="b:1"}]'], "two are named 'near'"),
        ([TWO, "placement.edge=0:1", "placement.near=2:"], "nobody has block 1 on samples [0, 32)"),
        ([TWO, "placement.edge=0:2", "placement.near=1:"], "two workers have block 1 on samples [0, 32)"),
        ([TWO, "placement.near=0:2", "placement.edge=2:"], "raw samples would go from 'edge' to 'near'"),
    ],
    ids=["unknown trainer", "named twice", "hole", "overlap", "inputs not permitted"],
)
def test_a_configuration_that_cannot_be_is_refused_before_anybody_is_asked(placed, says):
    refused(ExitCode.CONFIG, says, placed=placed)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("document", "says"),
    [
        (DIVIDED, "'edge' has 1 sample of block 0 (stem), which needs 2 at least"),
        (SHARED_BY_NOBODY, "block 0 is shared by edge, near and has no owner; name the one that updates it"),
        (DIVIDED | {"workers": ["edge", "near", "edge"]}, "worker 'edge' is named twice"),
        (DIVIDED | {"workers": ["edge", "near", "remote"]}, "worker 'remote' is not configured"),
        (ELSEWHERE, "in this version all samples are on this device"),
        (
            DIVIDED | {"codecs": [{"from": "near", "to": "edge", "cargo": "weights", "codec": "fp16"}]},
            "a codec is named for the cargo weights",
        ),
    ],
    ids=["too few samples", "no owner", "double worker", "unknown worker", "samples elsewhere", "codec of weights"],
)
def test_a_file_that_cannot_be_is_refused_before_anybody_is_asked(document, says, tmp_path):
    placed = [*flags_of_document(document, NOBODY, tmp_path), TWO, INPUTS_TO_NEAR]
    refused(ExitCode.CONFIG, says, placed=placed)


@pytest.mark.slow
def test_what_a_trainer_does_not_permit_ends_with_its_own_sentence_and_no_session(tmp_path):
    with ExitStack() as trainers:
        addresses, controls = {}, {}
        for name in ("near", "far"):
            controls[name] = f"unix:{tmp_path / name}.sock"
            own = [f"control.listen={controls[name]}", "compute.threads=1", f"checkpoints.location={tmp_path / name}"]
            _, addresses[name] = trainers.enter_context(trainer_process(*own))

        def placed(kind):
            return [*flags_of(kind, addresses, tmp_path), *permitted(kind, "cnn")]

        refused(
            ExitCode.REFUSED,
            "raw samples would go from 'edge' to 'near'",
            "server.accept_inputs",
            placed=placed("inverted"),
        )
        refused(
            ExitCode.REFUSED,
            f"'near' cannot dial 'far' at {addresses['far']}",
            "(peers.allowed)",
            placed=placed("chain of three"),
        )
        for control in controls.values():
            assert json.loads(command(trainer_app, "sessions", "--json", f"--control={control}")) == {}
