"""The learning benchmark: its schedule, its simulation, its data, its stored results and their tables."""

import io
import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from benchmarks.learning import table
from benchmarks.learning.__main__ import main
from benchmarks.learning.images import Images, channel_norm, read_split, shuffled_indices
from benchmarks.learning.plan import BATCH_SIZE, CONFIGS, NETWORKS, Trial
from benchmarks.learning.results import Result, append_result, read_results
from benchmarks.support.report import replaced
from edge_agent.data.jpeg_archive import read_jpeg_archive
from edge_agent.experiment.building import Experiment
from shared.codec import FeedbackMode, seed_stochastic_rounding
from shared.errors import DataError
from shared.model.build import build_checked_chain, check_cut
from shared.training.split_simulation import Scheme, Simulation, steady_events
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import ROOT, edge_config

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


@given(first=st.integers(0, 50), count=st.integers(0, 60), staleness=st.integers(0, 9))
def test_every_gradient_comes_as_late_as_it_may_and_no_later(first, count, staleness):
    stop, started, settled = first + count, first, first
    for what, step in steady_events(first, stop, staleness):
        if what == "forward":
            assert step == started < stop
            started += 1
            assert started - settled <= staleness + 1
        else:
            assert step == settled < started
            assert started - 1 - step == min(staleness, stop - 1 - step)
            settled += 1
    assert started == settled == stop


def simulated(scheme: Scheme, steps: int = 20, seed: int = 0, flags: tuple[str, ...] = ()):
    """The state after some steps on the digits, and every loss."""
    experiment = Experiment(edge_config(*FLAGS, f"training.seed={seed}", *flags))
    simulation = Simulation(experiment.chain, experiment.deployment.cut, experiment.recipe, scheme, CPU)
    batches = ((batch.inputs, batch.labels) for batch in experiment.loader.iterate(0, steps))
    losses = simulation.run(steady_events(0, steps, scheme.staleness), batches)
    return dict(experiment.chain.module.state_dict()), [batch.loss for batch in losses]


FLAGS = ["model.kwargs={width=8, blocks=2, dropout=0.2}", "training.optimizer={learning_rate=0.05, momentum=0.9}"]


def test_serial_fp32_is_a_plain_training_loop():
    state, losses = simulated(CONFIGS["serial"])
    assert_same_bits(plain_state(edge_config(*FLAGS, "training.max_steps=20")), state)
    assert len(losses) == 20


def test_every_part_of_a_scheme_matters_and_the_first_loss_is_free_of_staleness():
    schemes = [
        Scheme(5),
        Scheme(4),
        Scheme(5, "stash"),
        Scheme(5, codec="uniform4"),
        Scheme(5, codec="uniform4", feedback=FeedbackMode.LITERAL),
        Scheme(5, codec="uniform4", feedback=FeedbackMode.OFF),
        Scheme(5, codec="uniform4", downlink_codec="uniform8"),
    ]
    ends = {scheme: simulated(scheme, steps=8) for scheme in schemes}
    for one, other in itertools.combinations(schemes, 2):
        (state, losses), (other_state, other_losses) = ends[one], ends[other]
        assert any(not torch.equal(state[name], other_state[name]) for name in state), (one, other)
        assert (losses[0] == other_losses[0]) == (one.codec == other.codec)


def test_where_nothing_on_the_edge_learns_nothing_comes_late():
    experiment = Experiment(edge_config(*FLAGS))
    edge = experiment.chain.blocks[: experiment.deployment.cut]
    flags = (f"model.frozen={json.dumps([name for block in edge for name in block.named_parameters()])}",)
    late, exact = (simulated(scheme, steps=8, flags=flags)[0] for scheme in (Scheme(5), Scheme()))
    assert_same_bits(late, exact)
    lossy = simulated(Scheme(5, codec="uniform2"), steps=8, flags=flags)[0]
    assert any(not torch.equal(exact[name], lossy[name]) for name in exact)


def test_stochastic_rounding_is_the_seeds():
    scheme = replace(CONFIGS["k5-8bit-both"], staleness=1)
    states = []
    for draw in (1, 1, 2):
        seed_stochastic_rounding(draw)
        states.append(simulated(scheme, steps=4)[0])
    assert_same_bits(states[0], states[1])
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(states[0], states[2])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_cut_of_every_network_leaves_both_sides_something_to_learn(name):
    network = NETWORKS[name]
    chain = build_checked_chain(network.factory, network.kwargs, 0, torch.zeros(2, 3, 32, 32))
    check_cut(network.cut, chain)
    assert network.cut in (len(chain.blocks) // 2, -(-len(chain.blocks) // 2))
    assert any(block.trainable for block in chain.blocks[: network.cut])


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """100 images of each split, sorted by class, in the form of the real archive."""
    generator = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        labels = np.repeat(np.arange(10, dtype=np.uint8), 10)
        encoded = []
        for label in labels:
            buffer = io.BytesIO()
            pixels = generator.integers(0, 60, (32, 32, 3), dtype=np.uint8) + 19 * label
            Image.fromarray(pixels).save(buffer, "JPEG")
            encoded.append(np.frombuffer(buffer.getvalue(), np.uint8))
        arrays[f"{split}_bytes"] = np.concatenate(encoded)
        arrays[f"{split}_off"] = np.cumsum([0, *map(len, encoded)])
        arrays[f"{split}_y"] = labels
    path = tmp_path_factory.mktemp("images") / "images.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("limit", [None, 1, 99, 100, 101])
def test_images_are_the_agents_own_in_another_order(archive, limit):
    pixels, labels = read_split(archive, "train", limit)
    expected_pixels, expected_labels = read_jpeg_archive(archive, "train", 32, 32, None)
    order = shuffled_indices(100, "archive", "train")[:limit]
    assert torch.equal(pixels, expected_pixels[order])
    assert torch.equal(labels, expected_labels[order])
    assert sorted(shuffled_indices(100, "archive", "train").tolist()) == list(range(100))


def test_what_is_no_archive_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"missing\.npz cannot be read as an archive"):
        read_split(tmp_path / "missing.npz", "train")
    np.savez(tmp_path / "other.npz", train_bytes=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"other\.npz cannot be read"):
        read_split(tmp_path / "other.npz", "train")


def test_batches_are_normalised_and_every_sample_comes_once(archive):
    pixels, labels = read_split(archive, "train")
    norm = channel_norm(pixels)
    assert torch.allclose(norm[0], pixels.double().mean((0, 2, 3)).float())
    assert torch.allclose(norm[1], pixels.double().std((0, 2, 3), correction=0).float())
    images = Images(pixels, labels, norm, CPU)
    whole = torch.cat([inputs for inputs, _ in images.in_order(7)])
    assert torch.allclose(whole.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(whole.std((0, 2, 3)), torch.ones(3), atol=1e-3)

    shuffled = [[*images.shuffled(batch, seed, epoch)] for batch, seed, epoch in [(10, 0, 0), (10, 0, 0), (10, 0, 1)]]
    first, again, next_epoch = (torch.cat([inputs for inputs, _ in batches]) for batches in shuffled)
    assert torch.equal(first, again)
    assert not torch.equal(first, next_epoch)
    assert Counter(first.sum((1, 2, 3)).tolist()) == Counter(next_epoch.sum((1, 2, 3)).tolist())
    assert [len(inputs) for inputs, _ in images.shuffled(30, 0, 0)] == [30, 30, 30]


def result(config="serial", seed=0, accuracy=0.5, network="residual", epochs=8) -> Result:
    trial = Trial(network, config, seed, epochs, train_samples=50_000, learning_rate=0.05)
    return Result(trial, accuracy, test_samples=10_000, train_loss=1.0, seconds=1.0, device="cpu")


def test_results_come_back_from_their_file(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    assert read_results(path) == []
    kept = [result(), result(seed=1), replace(result(seed=2), train_loss=None)]
    for one in kept:
        append_result(path, one)
    assert read_results(path) == kept
    with path.open("a") as file:
        file.write('{"accuracy": 1}\n')
    with pytest.raises(DataError, match="line 4 is no result"):
        read_results(path)


def test_the_table_compares_seed_by_seed():
    serial = [result(seed=0, accuracy=0.70), result(seed=1, accuracy=0.80)]
    late = [result("k5-8bit", seed=0, accuracy=0.69), result("k5-8bit", seed=1, accuracy=0.794)]
    text = table.tables([*late, *serial])
    assert "| serial | 0 |  | fp32 |  | fp32 | 75.00 ± 7.07 |  | 2 |" in text
    assert "| k5-8bit | 5 | replay | uniform8 | batch | fp32 | 74.20 ± 7.35 | -0.80 ± 0.20 | 2 |" in text
    assert text.endswith("kept, -0.80.")
    assert "separable" not in text
    missed = [replace(one, accuracy=one.accuracy - 0.0021) for one in late]
    assert table.tables([*missed, *serial]).endswith("missed, -1.01.")


def test_a_row_without_all_seeds_is_not_shown_and_is_named():
    serial, late = [result(seed=seed) for seed in (0, 1)], [result("k5", seed=seed) for seed in (0, 1)]
    text = table.tables([*serial, *late, result("k5-8bit", accuracy=0.1)])
    assert "| k5 |" in text
    assert "| k5-8bit |" not in text
    assert "Not shown, because seeds are missing: k5-8bit." in text
    assert "Goal" not in text


@pytest.mark.parametrize(("rate", "said"), [(0.05, True), (0.01, True), (0.02, False)])
def test_a_learning_rate_at_the_edge_of_what_was_tried_is_said(rate, said):
    one = result()
    text = table.tables([replace(one, trial=replace(one.trial, learning_rate=rate))])
    assert ("at the edge of those that were tried (0.01, 0.02, 0.05)" in text) == said


def test_results_that_do_not_belong_together_make_no_table():
    with pytest.raises(DataError, match="2 settings"):
        table.tables([result(), result("k5", epochs=4)])
    with pytest.raises(DataError, match="more than once"):
        table.tables([result(), result()])
    with pytest.raises(DataError, match="0 settings"):
        table.tables([])


def test_the_table_replaces_what_stood_in_its_place(tmp_path):
    results, document = tmp_path / "results.jsonl", tmp_path / "results.md"
    append_result(results, result())
    document.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    for _ in range(2):
        table.main(["--results", str(results), "--into", str(document)])
        text = document.read_text()
        assert text.startswith("before\n")
        assert text.endswith("\nafter\n")
        assert "old" not in text
        assert text.count("| serial |") == 1
    with pytest.raises(DataError, match="no place"):
        replaced(f"{table.END}{table.BEGIN}", "text", "it", table.BEGIN, table.END)


def test_stored_results_make_tables():
    if results := read_results(table.RESULTS):
        assert "| serial |" in table.tables(results)


@pytest.mark.slow
def test_what_is_done_is_not_done_again(archive, tmp_path, capsys):
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


def test_it_runs_where_the_rest_of_the_product_cannot():
    absent = [
        "grpc",
        "google",
        "structlog",
        "prometheus_client",
        "rich",
        "typer",
        "sklearn",
        "edge_agent",
        "cloud_trainer",
    ]
    script = f"import sys\nfor name in {absent}: sys.modules[name] = None\nimport benchmarks.learning.__main__"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
