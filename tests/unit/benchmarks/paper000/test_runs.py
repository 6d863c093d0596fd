"""The configurations of paper 000's tasks, by which real programs train across a cut."""

import json
from importlib.util import find_spec

import pytest

from benchmarks.paper000.configuration import main
from benchmarks.paper000.tasks import TASKS
from tests.support.running import run_agent, trainer_process

HAS_PRETRAINED = find_spec("efficientnet_lite_pytorch") is not None
ALLOWED = 'models.allowed=["shared.model.zoo", "benchmarks.paper000.networks"]'
FAST = ["training.max_steps=8", "compute.threads=1", "compute.device=cpu", "data.batch_size=8"]


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_task_trains_across_its_cut(name, folder, tmp_path, capsys):
    if TASKS[name].stands_for.startswith("EfficientNet") and not HAS_PRETRAINED:
        pytest.skip("efficientnet_lite_pytorch is not installed")
    main([name, "--data", str(folder), "--epochs", "1"])
    (tmp_path / "task.toml").write_text(capsys.readouterr().out)
    trainer = trainer_process(ALLOWED, "compute.threads=1", "compute.device=cpu", "server.accept_inputs=true")
    with trainer as (_, address):
        settings = [*FAST, f"output.directory={tmp_path}"]
        flags = [f"--config={tmp_path / 'task.toml'}", f"--trainer={address}"]
        done = run_agent("run", *flags, *(f"--set={setting}" for setting in settings))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 8


def test_a_task_whose_file_is_missing_has_no_configuration(tmp_path, capsys):
    with pytest.raises(SystemExit, match="5"):
        main(["vgg19", "--data", str(tmp_path)])
    assert "cifar10_jpeg.npz" in capsys.readouterr().err
