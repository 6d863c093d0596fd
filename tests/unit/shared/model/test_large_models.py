"""A language model of usual size is divided in the memory of a few of its copies."""

import json
import subprocess
import sys

import pytest

from tests.support.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.zoo]
MOST_COPIES = 3.0
"""Memory of a division, the model's own weights included, in sizes of its weights."""
PROGRAM = """
import json, resource, torch
from tests.support.torchvisions import torchvision_imported

torchvision_imported()
from transformers import GPT2Config, GPT2LMHeadModel
from shared.model.chain import build_chain
from shared.model.build import choose_output

def most_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

small = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16, n_positions=16))
choose_output(small, "logits")
build_chain(small, {"input_ids": torch.zeros(2, 8, dtype=torch.int64)})
before = most_bytes()
model = GPT2LMHeadModel(GPT2Config())
choose_output(model, "logits")
chain = build_chain(model, {"input_ids": torch.zeros(2, 32, dtype=torch.int64)})
weights = sum(each.nbytes for each in model.parameters())
print(json.dumps({"copies": (most_bytes() - before) / weights, "blocks": len(chain.blocks), "weights": weights}))
"""


@pytest.mark.full
def test_gpt_2_of_twelve_layers_is_divided_after_every_layer_in_three_times_its_weights():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["weights"] > 4e8
    assert found["blocks"] >= 14
    assert found["copies"] <= MOST_COPIES
