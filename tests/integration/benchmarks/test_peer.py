"""PyTorch's own pipeline, which ours is compared with, on loopback: it trains with every count of the table."""

import pytest

from benchmarks.peer import MICROBATCHES
from benchmarks.support.peer_stage import BATCH, Pipeline, pipeline_ends
from tests.support.running import held_port

pytestmark = pytest.mark.slow

STEPS = 2


def test_the_peer_is_tried_with_few_microbatches_and_with_many():
    assert MICROBATCHES == (1, 2, 4, 8)


@pytest.mark.full
@pytest.mark.parametrize(
    ("network", "cuts", "microbatches"),
    [*(("small_cnn", (1,), count) for count in MICROBATCHES), *(("mobilenet", (6, 11), count) for count in (2, 4))],
)
def test_the_peer_trains_with_so_many_microbatches(network, cuts, microbatches):
    with held_port() as port:
        pipeline = Pipeline(f"127.0.0.1:{port}", microbatches, STEPS, BATCH, network, cuts)
        ends = pipeline_ends(pipeline, [["env", "GLOO_SOCKET_IFNAME=lo"]] * (len(cuts) + 1))
    assert len(ends) == STEPS
