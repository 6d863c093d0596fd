"""Uses of a trained model: predictions with the bits of the module, the figures of the run, and exports that agree."""

import csv
import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from edge_agent.afterwards import exports
from edge_agent.data import evaluation_batches
from edge_agent.data.named import load_dataset
from edge_agent.experiment.workload import Workload
from edge_agent.main import app as agent_app
from isthmus import run_training
from shared.errors import ConfigError, DataError, DifferentError, ExitCode, ModelError
from tests.support.commands import assert_one_sentence, command
from tests.support.running import edge_config, run_agent, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

FLAT = 'data.train={factory="tests.support.samples:FlatDigits"}'
FLAT_TEST = 'data.test={factory="tests.support.samples:FlatDigits", kwargs={split="test"}}'
WORDS = ['data.train={factory="tests.support.samples:Words"}', 'data.test={factory="tests.support.samples:Words"}']
MODELS = {
    "mlp": ['model.factory="shared.model.zoo:mlp"', FLAT, FLAT_TEST],
    "cnn": ["model.kwargs={width=8, blocks=2}"],
    "compiled": ['model.factory="tests.support.models.exported:compiled"', FLAT, FLAT_TEST],
    "inputs by name": [
        'model.factory="tests.support.models.several:NamedEncoder"',
        "model.kwargs={vocabulary=50, classes=4}",
        *WORDS,
        'data.collate="tests.support.batches:padded"',
    ],
}
KINDS = {"state-dict": "model.pt", "torch-export": "model.pt2", "onnx": "model.onnx"}


class Trained:
    """A model with weights of its own in a folder, and the flags that name both."""

    def __init__(self, folder, *flags):
        self.flags = [*flags, f"output.directory={folder}", "compute.threads=1"]
        self.config = edge_config(*self.flags)
        self.module = Workload(self.config).chain.module
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, value in self.module.state_dict().items():
                if value.is_floating_point():
                    value.copy_(torch.rand(value.shape, generator=generator) - (0.0 if "running" in name else 0.4))
        self.folder = folder
        save_file(
            {name: value.clone() for name, value in self.module.state_dict().items()}, folder / "model.safetensors"
        )

    def outputs(self):
        """The outputs as a user computes them."""
        data = self.config.data
        test, collate = load_dataset(data.test.factory, data.test.kwargs), Workload(self.config).collate
        self.module.eval()
        with torch.no_grad():
            batches = evaluation_batches(test, data.batch_size, collate=collate)
            parts = [
                self.module(**batch.inputs) if isinstance(batch.inputs, dict) else self.module(batch.inputs)
                for batch in batches
            ]
        return torch.cat(parts)

    def call(self, *arguments):
        """Run a command in this process and return its output."""
        return command(agent_app, *arguments, *(f"--set={flag}" for flag in self.flags))


@pytest.mark.parametrize("model", MODELS)
def test_predictions_have_the_bits_of_the_module(tmp_path, model):
    trained = Trained(tmp_path, *MODELS[model])
    expected = trained.outputs()
    assert f"{len(expected)} samples" in trained.call("predict", str(tmp_path / "outputs.npz"))
    with np.load(tmp_path / "outputs.npz") as arrays:
        assert arrays.files == ["outputs"]
        assert torch.equal(torch.from_numpy(arrays["outputs"]), expected)
    trained.call("predict", str(tmp_path / "outputs.csv"))
    with (tmp_path / "outputs.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == ["sample", *(f"outputs_{column}" for column in range(expected.shape[1]))]
    assert [row[0] for row in rows] == [str(sample) for sample in range(len(expected))]
    numbers = np.array([row[1:] for row in rows], dtype=np.float32)
    assert torch.equal(torch.from_numpy(numbers), expected)


async def test_an_evaluation_finds_what_the_run_has_found(tmp_path):
    async with running_trainer() as server:
        flags = [*MODELS["mlp"], "training.max_steps=8", f"output.directory={tmp_path}", 'training.metrics=["top5"]']
        config = edge_config(*flags, "deployment.cut=1", f"trainer.address={server.address}")
        result = await run_training(config, write_result=lambda done: done.write(tmp_path))
    found = json.loads(command(agent_app, "evaluate", "--json", *(f"--set={flag}" for flag in flags)))
    assert (found["loss"], found["accuracy"]) == (result.summary.test_loss, result.summary.accuracy)
    assert found["metrics"] == result.summary.metrics
    lines = command(agent_app, "evaluate", *(f"--set={flag}" for flag in flags)).splitlines()
    assert lines == [
        f"loss {found['loss']:.6g}",
        f"accuracy {found['accuracy']:.6g}",
        f"top5 {found['metrics']['top5']:.6g}",
    ]


@pytest.mark.parametrize("order", ["sampler", "sample_weights", "batch_sampler"])
def test_an_order_of_training_does_not_count(tmp_path, order):
    plain, ordered = MODELS["mlp"], f'data.{order}="tests.integration.commands.test_afterwards:of_training"'
    trained = Trained(tmp_path, *plain)
    expected = trained.call("evaluate", "--json")
    assert (
        command(agent_app, "evaluate", "--json", f"--set={ordered}", *(f"--set={flag}" for flag in trained.flags))
        == expected
    )


def of_training(dataset, *_of_epoch):
    raise AssertionError(f"this is no order of {len(dataset)} samples to test on")


def test_samples_that_are_not_named_are_no_others(tmp_path):
    trained = Trained(tmp_path, *MODELS["mlp"])
    with pytest.raises(ConfigError, match=r"data\.calibration is left out, so there are no samples of it"):
        trained.call("evaluate", "--data=calibration")


def test_the_samples_can_be_others(tmp_path):
    trained = Trained(tmp_path, *MODELS["mlp"])
    counts = {
        data: trained.call("predict", str(tmp_path / "x.npz"), *([f"--data={data}"] if data else [])).split()[0]
        for data in (
            "",
            "test",
            "train",
            "tests.support.samples:FlatDigits",
            '{factory="tests.support.samples:FlatDigits"}',
        )
    }
    assert list(counts.values()) == ["360", "360", "1437", "1437", "1437"]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "state-dict")) for kind in KINDS]
)
@pytest.mark.parametrize("model", MODELS)
def test_an_export_computes_as_the_model_does(tmp_path, model, kind):
    trained = Trained(tmp_path, *MODELS[model])
    file = tmp_path / KINDS[kind]
    assert "computes as the model does, on 33 samples" in trained.call("export", str(file), f"--to={kind}")
    assert {entry.name for entry in tmp_path.iterdir()} == {"model.safetensors", KINDS[kind]}
    if kind == "state-dict":
        written = torch.load(file, weights_only=True)
        assert all(torch.equal(written[name], value) for name, value in trained.module.state_dict().items())


def test_labels_that_are_no_class_are_predicted_for_and_not_evaluated_on(tmp_path):
    trained = Trained(tmp_path, *MODELS["mlp"])
    unlabelled = "--data=tests.integration.commands.test_afterwards:Unlabelled"
    assert trained.call("predict", str(tmp_path / "x.npz"), unlabelled).split()[0] == "20"
    with pytest.raises(DataError, match=r"sample 0 of data\.test is -1, and the model has 10 outputs"):
        trained.call("evaluate", unlabelled)


class Unlabelled:
    """Samples of which nobody knows the class."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, _index: int):
        return torch.zeros(64), -1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_export_of_a_run_in_bf16_computes_as_the_module_without_autocast(tmp_path, kind):
    trained = Trained(tmp_path, *MODELS["mlp"], 'training.precision="bf16"')
    assert "computes as the model does" in trained.call("export", str(tmp_path / KINDS[kind]), f"--to={kind}")


@pytest.mark.slow
def test_weights_of_a_type_that_onnxruntime_lacks_are_named_with_a_way_that_works(tmp_path):
    trained = Trained(tmp_path, 'model.factory="tests.support.models.exported:narrow"', FLAT, FLAT_TEST)
    with pytest.raises(
        ModelError, match=r"no Gemm for its types \(.*bfloat16.*\); export it to torch-export"
    ) as refused:
        trained.call("export", str(tmp_path / "x.onnx"), "--to=onnx")
    assert "ONNXRuntimeError" not in str(refused.value)
    assert "computes as the model does" in trained.call("export", str(tmp_path / "x.pt2"), "--to=torch-export")


LENGTHS = [
    *MODELS["inputs by name"][:-1],
    'data.collate="tests.support.batches:longest"',
    "data.longest=12",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch-export", "onnx"])
def test_an_export_takes_texts_of_every_length_where_lengths_vary(tmp_path, kind):
    trained, file = Trained(tmp_path, *LENGTHS), tmp_path / KINDS[kind]
    trained.call("export", str(file), f"--to={kind}")
    computes = torch.export.load(file).module() if kind == "torch-export" else by_onnxruntime(file)
    for length in range(1, 13):
        inputs = {"input_ids": torch.arange(3 * length).view(3, length), "attention_mask": torch.ones(3, length) > 0}
        expected = trained.module.eval()(**inputs)
        torch.testing.assert_close(computes(**inputs), expected, rtol=1e-5, atol=1e-5)


def test_a_layer_that_makes_a_constant_of_the_length_is_one_sentence(tmp_path):
    sequences = "tests.support.samples:Sequences"
    own = [
        'model.factory="tests.support.models.recurrent:Recurrent"',
        f"data.train={sequences}",
        f"data.test={sequences}",
    ]
    lengths = ['data.collate="torch.utils.data:default_collate"', "data.longest=12"]
    with pytest.raises(ModelError) as refusal:
        Trained(tmp_path, *own, *lengths).call("export", str(tmp_path / "x.pt2"), "--to=torch-export")
    assert str(refusal.value) == (
        "the model cannot be exported to torch-export: torch traces a layer for which the length of a batch, 12, is a "
        "constant, as for a recurrent one"
    )


def by_onnxruntime(file):
    session = onnxruntime.InferenceSession(file)
    return lambda **inputs: torch.from_numpy(
        session.run(None, {name: value.numpy() for name, value in inputs.items()})[0]
    )


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (
            "otherwise",
            DifferentError,
            "the export to torch-export computes otherwise than the model: output 0 differs by",
        ),
        ("branching", ModelError, "the model cannot be exported to torch-export: "),
    ],
)
def test_an_export_that_differs_or_fails_leaves_what_was_there(tmp_path, model, error, says):
    trained = Trained(tmp_path, f'model.factory="tests.support.models.exported:{model}"', FLAT, FLAT_TEST)
    (tmp_path / "model.pt2").write_text("before")
    with pytest.raises(error) as refusal:
        trained.call("export", str(tmp_path / "model.pt2"), "--to=torch-export")
    assert str(refusal.value).startswith(says)
    assert "\n" not in str(refusal.value)
    assert (tmp_path / "model.pt2").read_text() == "before"
    assert {entry.name for entry in tmp_path.iterdir()} == {"model.safetensors", "model.pt2"}


def test_an_export_whose_package_is_missing_names_it(tmp_path, monkeypatch):
    trained = Trained(tmp_path, *MODELS["mlp"])
    monkeypatch.setattr(exports, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ConfigError, match=r"onnxscript; install it with: pip install 'isthmus\[onnx\]'"):
        trained.call("export", str(tmp_path / "x.onnx"), "--to=onnx")


def test_outputs_of_several_lengths_are_no_table(tmp_path):
    trained = Trained(tmp_path, *MODELS["mlp"])
    with pytest.raises(DataError, match="outputs of different batches have different shapes"):
        predictions_of_lengths(trained, tmp_path / "x.npz")


def predictions_of_lengths(trained, file):
    from edge_agent.afterwards import predictions
    from edge_agent.afterwards import trained as building

    with building.trained(trained.config, None, None) as workload, pytest.MonkeyPatch.context() as patch:
        lengths = iter(range(1, 1000))
        patch.setattr(predictions, "outputs_of", lambda *_: (torch.zeros(2, next(lengths)),))
        predictions.write_predictions(workload, file)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["predict", "x.txt"], ExitCode.CONFIG, "end it with .npz or .csv"),
        (
            ["predict", "x.npz"],
            ExitCode.CONFIG,
            "output.directory is left out, so nothing says where the trained weights are",
        ),
        (
            ["evaluate", "--weights=absent"],
            ExitCode.CONFIG,
            "--weights: absent cannot be read: No such file or directory",
        ),
        (
            ["evaluate", "--set=output.directory=absent"],
            ExitCode.CONFIG,
            "output.directory: absent/model.safetensors cannot be read: No such file or directory",
        ),
        (["evaluate", "--weights=x", f"--set={FLAT}"], ExitCode.CONFIG, "data.test is left out"),
        (["evaluate", "--weights=x", "--data=no.such:data"], ExitCode.DATA, "module 'no.such' cannot be imported"),
        (["export", "x.onnx", "--to=tflite"], ExitCode.USAGE, "'tflite' is not one of onnx, torch-export, state-dict."),
    ],
)
def test_what_cannot_be_asked_for(tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    done = run_agent(*arguments)
    if code == ExitCode.USAGE:
        assert (done.returncode, "tflite" in done.stderr) == (code, True)
    else:
        assert_one_sentence("edge-agent", done, code, says)
    assert list(tmp_path.iterdir()) == []


def test_weights_of_another_model_are_refused(tmp_path):
    trained = Trained(tmp_path, *MODELS["mlp"])
    other = [*(f"--set={flag}" for flag in trained.flags), "--set=model.kwargs={hidden=8}"]
    file = tmp_path / "model.safetensors"
    for named_by, weights in (("output.directory", []), ("--weights", [f"--weights={file}"])):
        done = run_agent("evaluate", *other, *weights)
        says = f"{named_by}: {file} does not fit the model: '0.1.weight' is torch.float32 (64, 64)"
        assert_one_sentence("edge-agent", done, ExitCode.CONFIG, says)


def test_nobody_is_told_of_a_key_that_a_command_does_not_have(tmp_path):
    trained = Trained(tmp_path, *MODELS["mlp"])
    half = {name: value.half() for name, value in trained.module.state_dict().items()}
    save_file(half, tmp_path / "half.safetensors")
    flags = [f"--set={flag}" for flag in trained.flags]
    done = run_agent("evaluate", *flags, f"--weights={tmp_path / 'half.safetensors'}")
    assert_one_sentence("edge-agent", done, ExitCode.CONFIG, "is torch.float16 (64, 64)")
    assert "start_from" not in done.stderr
