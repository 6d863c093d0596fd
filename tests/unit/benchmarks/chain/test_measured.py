"""Plans for measured rates: stages, links, and the splits that other planners choose."""

import numpy as np
import pytest

from benchmarks.chain.measured import (
    Model,
    chain_document,
    even_cuts,
    parsed,
    planned,
    planned_as_ftpipehd,
    run_table,
)
from edge_agent.planning import Rates

RUNS = run_table(4, lambda first, stop: sum((0.1, 0.2, 0.3, 0.4)[first:stop]))
MODEL = Model((), ("a", "b", "c", "d"), (1.0, 2.0, 3.0, 4.0), RUNS, (0.0, 4e3, 2e3, 1e3, 0.0), 8)
QUICK = Rates(1e9, 1e9, 0.0)


def test_a_stage_takes_what_its_run_of_blocks_does_at_its_pace():
    chain = parsed(chain_document(MODEL, {"edge": 1.0, "near": 2.5}, QUICK))
    assert chain.worker("edge").replayed[0, 4] == pytest.approx(MODEL.seconds)
    assert chain.worker("near").replayed[1, 3] == pytest.approx(2.5 * 0.5)
    assert np.isnan(chain.worker("near").replayed[3, 1])
    assert len(chain.links) == 1


def test_each_end_of_a_link_takes_its_time_too():
    chain = parsed(chain_document(MODEL, {"edge": 1.0, "near": 2.0, "far": 1.0}, QUICK, end_seconds=0.01))
    assert chain.worker("edge").replayed[0, 2] == pytest.approx(0.3 + 0.01)
    assert chain.worker("near").replayed[1, 3] == pytest.approx(2 * (0.5 + 2 * 0.01))
    assert chain.worker("edge").replayed[0, 4] == pytest.approx(1.0)


@pytest.mark.parametrize(("blocks", "stages", "cuts"), [(18, 3, (6, 12)), (4, 3, (1, 2)), (5, 2, (2,)), (5, 1, ())])
def test_an_even_split_has_as_many_blocks_everywhere(blocks, stages, cuts):
    assert even_cuts(blocks, stages) == cuts


def test_ftpipehd_counts_a_hop_twice_and_sends_floats():
    # One feature each way takes 0.36 s at cut 2 and 0.18 s at cut 3. The best even shares of the work are 0.6 and 0.4.
    link = Rates(2e3 * 8 / 0.36, 2e3 * 8 / 0.36, 0.0)
    chain = parsed(chain_document(MODEL, {"edge": 1.0, "near": 1.0}, link))
    assert planned_as_ftpipehd(chain).cuts == (3,)
    assert planned_as_ftpipehd(chain).bits == (32,)
    slow = Rates(link.uplink * 0.4, link.downlink * 0.4, 0.0)
    chain = parsed(chain_document(MODEL, {"edge": 1.0, "near": 1.0}, slow))
    assert planned(chain, (32,)).seconds_per_step < 0.9
    assert planned_as_ftpipehd(chain).cuts == (3,)
