"""The figures of training in paper 000 as a command."""

import re
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from benchmarks.paper000.__main__ import main, marks
from benchmarks.paper000.figures import FIGURES
from benchmarks.paper000.tasks import SIZES, TASKS
from benchmarks.paper000.training import DEVIATIONS, LATENESS, QUANTILES, Evaluated, Result, Training
from benchmarks.support.json_lines import append_line, read_lines
from shared.errors import ExitCode

PRETRAINED = [name for name, task in TASKS.items() if "lite0" in task.sizes["small"].factory]
LEARNED = [name for name in TASKS if name not in PRETRAINED]


SAMPLES = 128
"""One batch of the largest, in Fig. 12."""
SAMPLES_OF_CHANGES = 320
"""As many steps as show a change of weights over the largest K, in Fig. 3."""


def options(folder, out, *more, samples=SAMPLES) -> list[str]:
    return ["--data", str(folder), "--out", str(out), "--epochs", "1", "--samples", str(samples), "--seeds", "0", *more]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Results that the figures of this file share, as those of a user do."""
    return tmp_path_factory.mktemp("results") / "results.jsonl"


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if {*figure.tasks} - {*PRETRAINED}])
def test_each_figure_runs_at_its_smallest_and_has_the_device_alone_beside_it(name, folder, out, capsys):
    given = [
        name,
        *options(folder, out, "--tasks", *LEARNED, samples=SAMPLES_OF_CHANGES if name == "fig3" else SAMPLES),
    ]
    main(given)
    text = capsys.readouterr().out
    shown = [task for task in FIGURES[name].tasks if task in LEARNED]
    assert [task for task in shown if f"*{TASKS[task].title}*" in text] == shown
    assert f"Paper: {FIGURES[name].paper}." in text
    if name != "fig3":
        assert text.count("| device alone") >= len(shown)
    assert "nan" not in text
    done = len(read_lines(out, Result.of, "it"))
    main(given)
    assert capsys.readouterr().out == text
    assert len(read_lines(out, Result.of, "it")) == done, "no training is repeated"


@pytest.mark.skipif(find_spec("efficientnet_lite_pytorch") is None, reason="efficientnet_lite_pytorch is not installed")
def test_the_pretrained_network_is_fine_tuned_whole_and_in_part(folder, out, capsys):
    main(["table4", *options(folder, out, "--tasks", "type2_tiny", "probe_tiny")])
    text = capsys.readouterr().out
    assert "*type 2, Tiny ImageNet*" in text
    assert "| 73.7 |" not in text
    assert re.search(r"\| pipeline, 8 bits, feedback \| 70.9 \| \d", text)


def stored(task: str, accuracy: float, **changes) -> Result:
    rates = tuple((late * 0.01,) * len(QUANTILES) for late in LATENESS)
    deviations = tuple((phase * 1e-5,) * len(DEVIATIONS) for phase in (3, 2, 1))
    return Result(
        Training(task, "small", 1, SAMPLES, 0, **changes), (Evaluated(1.0, accuracy),), None, rates, deviations, 1.0
    )


def test_the_change_of_weights_is_shown_by_phase(tmp_path, capsys):
    append_line(tmp_path / "results.jsonl", stored("type1_cifar10", 0.5))
    main(["fig4", *options(tmp_path, tmp_path / "results.jsonl")])
    text = capsys.readouterr().out
    assert "| first | 3.00e-05 | 3.00e-05 | 3.00e-05 | 1 |" in text
    assert "6.94e-05" in text


def test_a_task_trains_for_its_own_number_of_epochs(tmp_path, capsys):
    one, out = stored("resnet50", 0.5), tmp_path / "results.jsonl"
    for row in FIGURES["fig7"].rows(replace(one.training, epochs=20, samples=4000)):
        append_line(out, replace(one, training=row.training))
    main(["fig7", "--out", str(out), "--tasks", "resnet50", "--seeds", "0"])
    assert "`residual_cnn`, sgd, 20 epochs of at most 4000 samples." in capsys.readouterr().out


def test_what_is_not_stored_whole_is_left_out_when_nothing_is_to_run(tmp_path, capsys):
    one = stored("chair", 0.5)
    for seed, rows in ((0, 4), (1, 3), (2, 4)):
        for row in FIGURES["table4"].rows(replace(one.training, seed=seed))[:rows]:
            append_line(tmp_path / "results.jsonl", replace(one, training=row.training))
    given = options(tmp_path, tmp_path / "results.jsonl", "--tasks", "chair", "din", "--stored")
    given[given.index("--seeds") + 1] = "0-2"
    main(["table4", *given])
    text = capsys.readouterr().out
    assert "*DIN, MovieLens*" not in text
    assert text.count(" | 2 |\n") == 4, "the middle seed has no predicted weights"
    assert len(read_lines(tmp_path / "results.jsonl", Result.of, "it")) == 11


def test_a_figure_without_a_table_leaves_its_document_as_it_is(tmp_path, capsys):
    document = tmp_path / "results.md"
    begin, end = marks("fig7")
    document.write_text(f"{begin}\nold\n{end}\n")
    with pytest.raises(SystemExit) as caught:
        main(["fig7", *options(tmp_path, tmp_path / "none.jsonl", "--stored", "--into", str(document))])
    assert caught.value.code == ExitCode.DATA
    assert "fig7 has no table" in capsys.readouterr().err
    assert "old" in document.read_text()


@pytest.mark.parametrize(("name", "task"), [("fig22", "resnet50"), ("recall", "type2_tiny")])
def test_a_task_without_the_measured_figure_is_refused_before_anything_is_trained(name, task, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["fig14", name, "--tasks", "din", "--data", str(tmp_path / "none"), "--out", str(tmp_path / "none.jsonl")])
    assert caught.value.code == ExitCode.DATA
    assert f"{name} has no table: its tasks are {task}" in capsys.readouterr().err


def test_a_document_without_the_marks_is_refused_before_anything_is_trained(tmp_path, capsys):
    document = tmp_path / "results.md"
    document.write_text("nothing\n")
    with pytest.raises(SystemExit) as caught:
        main(["fig7", "--data", str(tmp_path / "none"), "--out", str(tmp_path / "none.jsonl"), "--into", str(document)])
    assert caught.value.code == ExitCode.DATA
    assert "has no place for the tables" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["fig22", "--stored"], "fig22 is not stored"),
        (["recall", "--stored"], "recall is not stored"),
        (["recall", "--epochs", "1"], "recall shows in a second epoch"),
        (["fig7", "--epochs", "0"], "0 is below 1"),
        (["fig7", "--seeds", "2-0"], "2-0 ends before it begins"),
        (["fig7", "--workers", "0"], "0 is below 1"),
        (["fig7", "--device", "foo"], "invalid choice: 'foo'"),
        (["fig7", "--into", "no/such.md"], "no/such.md is no file"),
        pytest.param(
            ["fig7", "--device", "cuda"],
            "torch finds no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_what_cannot_be_asked_for_is_one_sentence(given, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(given)
    assert said in capsys.readouterr().err


def test_the_fewest_bits_of_each_cut_lose_a_point_at_most(tmp_path, capsys):
    alone = stored("resnet50", 0.5)
    rows = FIGURES["fig8"].rows(alone.training)
    found = {8: 0.495, 4: 0.491, 3: 0.48, 2: 0.2}
    append_line(tmp_path / "results.jsonl", alone)
    for row in rows[1:]:
        accuracy = found[int(row.training.codec[-1])] if row.training.cut == 1 else 0.3
        append_line(
            tmp_path / "results.jsonl", replace(alone, training=row.training, curve=(Evaluated(1.0, accuracy),))
        )
    main(["fig8", *options(tmp_path, tmp_path / "results.jsonl", "--tasks", "resnet50")])
    assert "at most 1 point: cut 1: 4, cut 2: more than 8, cut 4: more than 8." in capsys.readouterr().out


def test_memory_is_that_of_agents_and_more_with_late_features(capsys):
    main(["fig22", "--tasks", "resnet50", "--seeds", "0"])
    rows = re.findall(r"\| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", capsys.readouterr().out)
    assert [int(cut) for cut, *_ in rows] == [1, 2, 4]
    for _, alone, serial, ours in rows:
        assert float(alone) > 10
        assert float(serial) < float(ours)


@pytest.mark.skipif(find_spec("efficientnet_lite_pytorch") is None, reason="efficientnet_lite_pytorch is not installed")
def test_recall_sends_each_feature_of_the_frozen_network_once(folder, capsys):
    main(["recall", "--data", str(folder), "--seeds", "0"])
    text = capsys.readouterr().out
    rows = re.findall(r"\| ([^|]+) \| ([\d.]+) \| ([\d.]*) \| [\d.]+ \| [\d.]* \| 1 \|", text)
    assert [row for row, *_ in rows] == ["device alone", "8 bits", "8 bits, recall"]
    assert float(rows[0][1]) < float(rows[2][1]) < float(rows[1][1])
    assert 0.4 < float(rows[2][2]) < 0.7


def test_a_figure_takes_its_place_in_a_document(tmp_path):
    document = tmp_path / "results.md"
    begin, end = marks("fig4")
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    append_line(tmp_path / "results.jsonl", stored("type1_cifar10", 0.5))
    main(["fig4", *options(tmp_path, tmp_path / "results.jsonl", "--into", str(document))])
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| first |" in text


def test_data_that_is_missing_is_one_sentence_and_its_code(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["table4", *options(tmp_path, tmp_path / "results.jsonl", "--tasks", "din")])
    assert caught.value.code == ExitCode.DATA
    assert "ml-100k.user cannot be read" in capsys.readouterr().err


def test_every_task_has_the_sizes_and_every_figure_known_tasks():
    for task in TASKS.values():
        assert tuple(task.sizes) == SIZES
        for size in task.sizes.values():
            assert list(size.cuts) == sorted(size.cuts)
    for figure in FIGURES.values():
        assert {*figure.tasks} <= {*TASKS}
