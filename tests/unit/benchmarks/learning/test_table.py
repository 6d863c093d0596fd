"""Stored results of the learning benchmark, and their tables."""

from dataclasses import replace

import pytest

from benchmarks.learning import table
from benchmarks.learning.plan import SUITES, Trial
from benchmarks.learning.results import RESULTS, Result, read_results
from benchmarks.support.json_lines import append_line
from benchmarks.support.report import replaced
from shared.errors import DataError


def result(config="serial", seed=0, accuracy=0.5, network="residual", epochs=8) -> Result:
    trial = Trial(network, config, seed, epochs, train_samples=50_000, learning_rate=0.05)
    return Result(trial, accuracy, test_samples=10_000, train_loss=1.0, seconds=1.0, device="cpu")


def test_results_come_back_from_their_file(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    assert read_results(path) == []
    kept = [result(), result(seed=1), replace(result(seed=2), train_loss=None)]
    for one in kept:
        append_line(path, one)
    assert read_results(path) == kept
    with path.open("a") as file:
        file.write('{"accuracy": 1}\n')
    with pytest.raises(DataError, match="line 4 is no result"):
        read_results(path)


def test_the_table_compares_seed_by_seed():
    serial = [result(seed=0, accuracy=0.70), result(seed=1, accuracy=0.80)]
    late = [result("k5-8bit", seed=0, accuracy=0.69), result("k5-8bit", seed=1, accuracy=0.794)]
    text = table.tables([*late, *serial])
    assert "| serial | 0 |  | fp32 |  | fp32 | 75.00 ± 7.07 |  |  | 2 |" in text
    assert "| k5-8bit | 5 | replay | uniform8 | batch | fp32 | 74.20 ± 7.35 | -0.80 ± 0.20 |  | 2 |" in text
    assert text.endswith("kept, -0.80.")
    assert "separable" not in text
    missed = [replace(one, accuracy=one.accuracy - 0.0021) for one in late]
    assert table.tables([*missed, *serial]).endswith("missed, -1.01.")


def test_another_optimizer_has_tables_of_its_own():
    adam = [
        replace(one, trial=replace(one.trial, optimizer="adam", learning_rate=0.001))
        for one in (result(), result("k5"))
    ]
    text = table.tables([result(), *adam])
    assert "rises to 0.05, 0.001 (adam) in the first epoch" in text
    of_sgd, of_adam = text.split("**residual, adam**")
    assert "| k5 |" in of_adam
    assert "| serial |" in of_sgd
    assert "| k5 |" not in of_sgd


def test_the_table_says_what_a_model_gains_in_one_piece():
    few_bits = [replace(result("k5-2bit", seed=seed), whole_accuracy=0.5 - 0.01 * seed) for seed in (1, 3)]
    text = table.tables([result(seed=1), result(seed=3), *few_bits, result("k5-2bit", seed=4), result(seed=4)])
    assert "| +0.00 ± 0.00 | -2.00 ± 1.00 | 3 |" in text


def test_a_row_without_all_seeds_is_not_shown_and_is_named():
    serial, late = [result(seed=seed) for seed in (0, 1)], [result("k5", seed=seed) for seed in (0, 1)]
    text = table.tables([*serial, *late, result("k5-8bit", accuracy=0.1)])
    assert "| k5 |" in text
    assert "| k5-8bit |" not in text
    assert "Not shown, because seeds are missing: k5-8bit." in text
    assert "Goal" not in text


def test_fewer_seeds_show_the_rows_that_have_only_these(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    for one in [*(result(seed=seed) for seed in range(3)), result("k5", seed=0), result("k5", seed=1)]:
        append_line(path, one)
    for seeds, rows in (("0-1", "| 2 |"), ("1", "| 1 |")):
        table.main(["--results", str(path), "--seeds", seeds])
        shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| serial ", "| k5 "))]
        assert len(shown) == 2
        assert all(line.endswith(rows) for line in shown)


@pytest.mark.parametrize(("rate", "said"), [(0.05, True), (0.01, True), (0.02, False)])
def test_a_best_learning_rate_at_the_edge_of_those_tried_is_reported(rate, said):
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
    append_line(results, result())
    (begin, end), others = table.marks("pair"), "\nof others\n".join(table.marks("chain"))
    document.write_text(f"before\n{begin}\nold\n{end}\n{others}\nafter\n")
    for _ in range(2):
        table.main(["--results", str(results), "--into", str(document)])
        text = document.read_text()
        assert text.startswith("before\n")
        assert text.endswith(f"\n{others}\nafter\n")
        assert "old" not in text
        assert text.count("| serial |") == 1
    with pytest.raises(DataError, match="no place"):
        replaced(end + begin, "text", "it", begin, end)


def test_stored_results_make_tables():
    for suite, path in RESULTS.items():
        if results := read_results(path):
            text = table.tables(results)
            assert f"| {next(iter(SUITES[suite].configs))} |" in text
            assert text in RESULTS["pair"].with_suffix(".md").read_text(), "made from other results"
