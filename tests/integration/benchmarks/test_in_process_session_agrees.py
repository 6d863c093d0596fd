"""The session of `benchmarks.learning` is the pipeline: given the order of a real run, it ends with the same weights.

The real runs are two processes over gRPC; their order is read from their time line.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edge_agent.experiment.experiment import Experiment
from shared.codec import FeedbackMode
from shared.execution.in_process_session import Turn
from shared.execution.split import EDGE, Scheme, split_session
from tests.support.plain import assert_same_bits
from tests.support.plain_late import steady_order
from tests.support.running import edge_config, run_agent, trainer_process

STEPS = 60
FLAGS = [
    "model.kwargs={width=8, blocks=2, dropout=0.2}",
    'training.optimizer={name="sgd", learning_rate=0.05, momentum=0.9, weight_decay=1e-4}',
    'training.schedule={name="cosine", every="step", warmup_steps=5}',
    f"training.max_steps={STEPS}",
    "training.evaluate_every_epochs=1",
]
SCHEMES = {
    "8 bits both ways": Scheme(5, codec="uniform8", downlink_codec="uniform8"),
    "2 bits by channel, stash": Scheme(5, "stash", FeedbackMode.LITERAL, "uniform2-channel", "bf16"),
    "fp32": Scheme(5),
}


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def trainer():
    with trainer_process("compute.threads=1", "compute.device=cpu") as (_, address):
        yield address


def flags(scheme: Scheme, cut: int) -> list[str]:
    return [
        *FLAGS,
        f"deployment.cut={cut}",
        f"deployment.staleness={scheme.staleness}",
        f'deployment.backward="{scheme.backward}"',
        f'deployment.feedback="{scheme.feedback.value}"',
        f'deployment.codec="{scheme.codec}"',
        f'deployment.downlink_codec="{scheme.downlink_codec}"',
    ]


def real_run(address: str, scheme: Scheme, cut: int, folder: Path):
    """The state that a real agent leaves, and the order of its forwards and backwards."""
    settings = [*flags(scheme, cut), f"output.directory={folder}", f"output.trace={folder / 'trace.json'}"]
    settings += ["compute.threads=1", "compute.device=cpu"]
    done = run_agent("run", f"--trainer={address}", *(f"--set={setting}" for setting in settings))
    assert done.returncode == 0, done.stderr
    spans = [
        span for span in json.loads((folder / "trace.json").read_text())["traceEvents"] if span.get("cat") == "edge"
    ]
    spans.sort(key=lambda span: span["ts"])
    order = [(span["name"].replace(",", " ").split()[0], span["args"]["step"]) for span in spans]
    return load_file(folder / "model.safetensors"), order


def simulated(scheme: Scheme, cut: int, order):
    experiment = Experiment(edge_config(*flags(scheme, cut)))
    chain = experiment.chain
    batches = ((batch.inputs, batch.labels) for batch in experiment.loader.iterate(0, STEPS))
    in_process = split_session(chain, (cut,), experiment.recipe, scheme, torch.device("cpu"))
    in_process.replay([Turn(EDGE, step, ("forward", "backward").index(what)) for what, step in order], batches)
    return dict(chain.module.state_dict())


@pytest.mark.parametrize(("name", "cut"), [*((name, 2) for name in SCHEMES), ("8 bits both ways", 3)])
def test_a_real_run_and_its_simulation_end_with_the_same_weights(name, cut, trainer, tmp_path):
    scheme = SCHEMES[name]
    real, order = real_run(trainer, scheme, cut, tmp_path)
    assert {(what, step) for what in ("forward", "backward") for step in range(STEPS)} == set(order)
    assert len(order) == 2 * STEPS
    assert_same_bits(real, simulated(scheme, cut, order))

    # The order decides the weights, or equal weights would say nothing of it.
    exact = list(steady_order(0, STEPS, 0))
    assert order != exact, "the real pipeline was never late, so nothing was compared"
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(real, simulated(scheme, cut, exact))
