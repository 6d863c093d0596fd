"""The learning benchmark as a command."""

import itertools
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from benchmarks.learning import table
from benchmarks.learning.__main__ import main
from benchmarks.learning.plan import BATCH_SIZE, NETWORKS
from benchmarks.learning.results import read_results
from shared.model.build import build_checked_chain, check_cut
from tests.support.running import ROOT


@pytest.mark.parametrize("name", NETWORKS)
def test_the_cuts_of_every_network_leave_every_worker_something_to_learn(name):
    network = NETWORKS[name]
    chain = build_checked_chain(network.factory, network.kwargs, 0, torch.zeros(2, 3, 32, 32))
    for cut in itertools.chain(*network.cuts.values()):
        check_cut(cut, chain)
    (middle,) = network.cuts["pair"]
    assert network.cuts["late"] == network.cuts["pair"]
    assert middle in (len(chain.blocks) // 2, -(-len(chain.blocks) // 2))
    for cuts in network.cuts.values():
        for first, stop in pairwise((0, *cuts, len(chain.blocks))):
            assert any(block.trainable for block in chain.blocks[first:stop])


@pytest.mark.full
def test_finished_trainings_are_not_repeated(archive, tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    call = ["--data", str(archive), "--out", str(path), "--networks", "separable", "--epochs", "1", "--seeds", "3"]
    call += ["--train-samples", str(2 * BATCH_SIZE + 1)]
    main([*call, "--configs", "serial"])
    main([*call, "--configs", "serial", "k5-2bit", "--workers", "2"])
    results = read_results(path)
    assert [one.trial.config for one in results] == ["serial", "k5-2bit"]
    assert {one.trial.seed for one in results} == {3}
    assert all(one.test_samples == 100 and one.train_loss for one in results)
    main([*call, "--configs", "k5", "--stop-seconds", "0"])
    assert len(read_results(path)) == 2
    assert capsys.readouterr().out.count("seed 3:") == 2


@pytest.mark.slow
def test_a_chain_of_three_trains_with_codecs_that_follow_the_milestones(archive, tmp_path):
    path = tmp_path / "results.jsonl"
    call = ["--data", str(archive), "--out", str(path), "--networks", "separable", "--epochs", "2", "--seeds", "3"]
    call += ["--train-samples", str(2 * BATCH_SIZE), "--suite", "chain"]
    main([*call, "--configs", "chain-mbq2", "chain-adaptive", "chain"])
    results = read_results(path)
    assert {one.trial.suite for one in results} == {"chain"}
    assert {one.trial.config for one in results if one.whole_accuracy is None} == {"chain"}
    losses = [one.train_loss for one in results]
    assert len(set(losses)) == 3, "the second epoch begins with the first milestone"
    text = table.tables(results)
    assert "| chain-adaptive | 2 | replay | mbq2, then mbq3, then mbq4 |" in text
    assert "Goal: chain-mbq2 at most 1 point below chain:" in text


@pytest.mark.slow
def test_predicted_weights_make_another_training(archive, tmp_path):
    path = tmp_path / "results.jsonl"
    call = ["--data", str(archive), "--out", str(path), "--networks", "separable", "--epochs", "2", "--seeds", "3"]
    call += ["--train-samples", str(3 * BATCH_SIZE), "--suite", "late"]
    main([*call, "--configs", "serial", "k5", "k5-predicted", "k5-stash-predicted"])
    results = read_results(path)
    assert len({one.train_loss for one in results}) == 4
    text = table.tables(results)
    assert "| k5 | 5 | replay | fp32 |" in text
    assert "| k5-predicted | 5 | replay, features of predicted weights | fp32 |" in text
    assert "Goal: k5-predicted at least 0 points above k5:" in text


@pytest.mark.full
def test_members_of_a_group_share_a_batch_with_residuals_and_without(archive, tmp_path):
    path = tmp_path / "results.jsonl"
    call = ["--data", str(archive), "--out", str(path), "--networks", "separable", "--epochs", "2", "--seeds", "3"]
    call += ["--train-samples", str(2 * BATCH_SIZE), "--suite", "group"]
    main([*call, "--configs", "group", "group-8bit", "group-8bit-off", "group-topk1"])
    results = read_results(path)
    assert len({one.train_loss for one in results}) == 4
    assert {one.whole_accuracy for one in results} == {None}
    text = table.tables(results)
    assert "each batch shared by the 2 members of a group" in text
    assert "| group-topk1 | 0 |  | topk1 | residual | raw |" in text
    assert "| group-8bit-off | 0 |  | uniform8 | off | uniform8 |" in text


def test_a_configuration_of_another_suite_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--data", "none.npz", "--configs", "chain-mbq2"])
    assert "'chain-mbq2' is no configuration of the suite 'pair'" in capsys.readouterr().err


@pytest.mark.slow
def test_it_runs_where_the_rest_of_the_product_cannot():
    absent = ["grpc", "google", "structlog", "prometheus_client", "rich", "typer", "edge_agent"]
    script = f"import sys\nfor name in {absent}: sys.modules[name] = None\nimport benchmarks.learning.__main__"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
