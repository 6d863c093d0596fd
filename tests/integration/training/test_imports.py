"""What training does not need it does not import: torch's compiler and sympy take 71 MB and a second, scikit-learn 78 MB,
cryptography 8 MB."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

DEAR = ("torch._dynamo", "torch._inductor", "sympy", "scipy", "sklearn", "matplotlib")
SCRIPT = """
import sys
from edge_agent import EdgeConfig, train
from shared.config import load_config
flags = ["trainers=[]", "training.max_steps=2", "checkpoints.location=none", "control.listen=none", *sys.argv[1:]]
train(load_config(EdgeConfig, None, flags))
print(*(name for name in {dear} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "adagrad", "adafactor", "lion"])
def test_training_on_the_device_imports_nothing_dear(optimizer):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(dear=DEAR), f"training.optimizer.name={optimizer}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == ""


@pytest.mark.parametrize("module", ["cloud_trainer.main", "cloud_trainer.server", "edge_agent.run"])
def test_nobody_without_certificates_imports_what_reads_them(module):
    script = f"import sys, {module}; assert 'cryptography' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
