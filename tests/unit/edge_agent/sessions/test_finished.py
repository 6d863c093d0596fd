"""A finished result in the output folder: which later run it keeps from beginning at the seed."""

import json

import pytest

from edge_agent.sessions.finished import check_not_longer, settings_of_result
from shared.errors import ConfigError
from tests.support.commands import MLP
from tests.support.running import edge_config

DONE = 40


@pytest.fixture
def flags(tmp_path):
    """The flags of a run that has ended in a folder, where its result is."""
    flags = [*MLP, "training.epochs=2", f"output.directory={tmp_path}"]
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    write_summary(tmp_path, settings=settings_of_result(edge_config(*flags)))
    return flags


def write_summary(folder, **changed):
    text = {"steps": DONE, "diverged_at_step": None, **changed}
    (folder / "summary.json").write_text(json.dumps(text))


def test_a_longer_run_is_refused_with_the_file_to_begin_with(flags, tmp_path):
    with pytest.raises(
        ConfigError, match=rf"after {DONE} steps.* to 60; set training\.start_from={tmp_path}/model"
    ) as told:
        check_not_longer(edge_config(*flags, "training.epochs=3"), 60)
    assert told.value.exit_code == 3


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ([], DONE),
        ([], DONE + 1),  # the data set has grown, and a service began the run again
        (["training.max_steps=30"], 30),
        (["training.epochs=3", "training.seed=5"], 60),
        (["training.epochs=3", "data.train.kwargs={count=9}"], 60),
        (["training.epochs=3", "training.start_from=/elsewhere"], 60),
    ],
)
def test_a_run_that_is_not_that_one_made_longer_begins(flags, changes, steps):
    check_not_longer(edge_config(*flags, *changes), steps)


def test_a_run_that_begins_with_the_result_may_be_longer(flags, tmp_path):
    check_not_longer(edge_config(*flags, "training.epochs=3", f"training.start_from={tmp_path}/model.safetensors"), 60)


@pytest.mark.parametrize("changed", [{"diverged_at_step": 7}, {"settings": None}, {"steps": None}, {"settings": [1]}])
def test_a_result_of_a_run_that_diverged_or_that_tells_nothing_refuses_none(flags, tmp_path, changed):
    write_summary(tmp_path, **{"settings": settings_of_result(edge_config(*flags)), **changed})
    check_not_longer(edge_config(*flags, "training.epochs=3"), 60)


def test_a_folder_without_the_model_or_with_another_file_refuses_none(flags, tmp_path):
    longer = edge_config(*flags, "training.epochs=3")
    (tmp_path / "model.safetensors").unlink()
    check_not_longer(longer, 60)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "summary.json").write_text("{")
    check_not_longer(longer, 60)
