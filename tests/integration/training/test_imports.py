"""Modules that training does not need are not imported: torch's compiler and sympy take 71 MB and a second,
cryptography 8 MB, and Pillow need not even be installed. A trainer imports the modules that it needs before anybody
trains there."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

DEAR = ("torch._dynamo", "torch._inductor", "sympy", "scipy", "matplotlib", "PIL")
SCRIPT = """
import sys
from isthmus import EdgeConfig, train
from shared.config import load_config
flags = ["trainers=[]", "training.max_steps=2", "checkpoints.location=none", "control.listen=none", *sys.argv[1:]]
train(load_config(EdgeConfig, None, flags))
print(*(name for name in {dear} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        "sgd",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("adam", "adamw", "rmsprop", "adagrad", "adafactor", "lion")
        ),
    ],
)
def test_training_on_the_device_imports_nothing_dear(optimizer):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(dear=DEAR), f"training.optimizer.name={optimizer}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == ""


FIRST_SESSION = """
import asyncio, sys
from tests.support.running import running_trainer
from tests.support.wire import RawPeer

async def main():
    async with running_trainer() as server, RawPeer(server.address) as peer:
        before = set(sys.modules)
        await peer.open_and_join()
        print(*sorted(set(sys.modules) - before))

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_first_session_of_a_trainer_imports_nothing_but_its_model():
    done = subprocess.run([sys.executable, "-c", FIRST_SESSION], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "shared.model.layers shared.model.zoo"


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [pytest.param("cloud_trainer.main", marks=pytest.mark.full), "cloud_trainer.server", "edge_agent.run"]
)
def test_nobody_without_certificates_imports_what_reads_them(module):
    script = f"import sys, {module}; assert 'cryptography' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
