"""PyTorch's own pipeline, which ours is compared with, on loopback: it trains with every count of the table."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.peer import MICROBATCHES
from benchmarks.support.peer_stage import BATCH
from tests.support.running import ROOT, held_port

STEPS = 2


def test_the_peer_is_tried_with_few_microbatches_and_with_many():
    assert MICROBATCHES == (1, 2, 4, 8)


@pytest.mark.parametrize("microbatches", MICROBATCHES)
def test_the_peer_trains_with_so_many_microbatches(microbatches):
    with held_port() as port:
        arguments = [f"127.0.0.1:{port}", str(microbatches), str(STEPS), str(BATCH)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.support.peer_stage", str(rank), *arguments],
                cwd=ROOT,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert [len(json.loads(text)) for text in printed] == [STEPS, STEPS]
