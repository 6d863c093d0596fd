"""The page about exactness: its loop, which knows nothing of us, has the weights and the figures of a real run."""

import sys

import pytest
import torch

from edge_agent.data import digits
from isthmus import EdgeConfig, run_training
from shared.config import load_config
from tests.support.plain import assert_same_bits
from tests.support.running import ROOT, running_trainer, train_with

EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.first_case
@pytest.mark.parametrize("cut", [4, 6])
async def test_the_loop_of_the_page_is_a_run_over_sockets_bit_for_bit(cut, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    async with running_trainer('models.allowed=["noisy"]') as trainer:
        flags = [
            f"trainer.address={trainer.address}",
            "control.listen=none",
            f"deployment.cut={cut}",
            "compute.device=cpu",
        ]
        result = await run_training(load_config(EdgeConfig, EXAMPLES / "noisy.toml", flags, environ={}))
    plain: dict[str, object] = {}
    exec(compile((EXAMPLES / "plain.py").read_text(), "plain.py", "exec"), plain)
    sys.modules.pop("noisy")
    assert_same_bits(plain["weights"], result.module.state_dict())
    assert (plain["test_loss"], plain["accuracy"]) == (result.summary.test_loss, result.summary.accuracy)
    assert (result.summary.saved_test_loss, result.summary.saved_accuracy) == (None, None)


async def test_with_a_lossy_codec_the_figures_of_the_saved_model_stand_beside_those_of_the_run():
    flags = ["training.epochs=1", "training.max_steps=8", "deployment.codec=uniform4", "deployment.cut=4"]
    async with running_trainer() as trainer:
        result = await train_with(trainer, *flags)
    loss, right, data = 0.0, 0, digits("test")
    for begin in range(0, len(data), 32):
        samples = [data[index] for index in range(begin, min(begin + 32, len(data)))]
        labels = torch.tensor([label for _, label in samples])
        with torch.no_grad():
            output = result.module.eval()(torch.stack([image for image, _ in samples]))
        loss += float(torch.nn.functional.cross_entropy(output, labels)) * len(samples)
        right += int((output.argmax(1) == labels).sum())
    summary = result.summary
    assert summary.saved_test_loss == pytest.approx(loss / len(data), rel=1e-6)
    assert summary.saved_accuracy == pytest.approx(right / len(data), abs=0.002)
    assert summary.test_loss != summary.saved_test_loss
    assert summary.test_loss == pytest.approx(summary.saved_test_loss, rel=0.5)
