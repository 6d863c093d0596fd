"""The checker of step logs: it accepts the records of exactly-once training, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import StepLogError, StorageError
from shared.training.step_log import StepLog, applied_steps, check_steps, merged_ranks


def lines_of(steps):
    return [f"applied {step} {step:016x}" for step in steps]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6), st.integers(0, 12))
def test_steps_after_a_rollback_count_once(lineages, last):
    lines, done = [], 0
    for forward, back in lineages:
        lines += lines_of(range(done, done + forward))
        done = min(done + forward, back)
        lines.append(f"back {done}")
    lines += lines_of(range(done, done + last))
    steps = applied_steps(lines)
    assert steps.count == done + last
    assert steps.hashes == {step: f"{step:016x}" for step in range(done + last)}


def test_of_several_goings_back_in_a_row_the_last_counts():
    """As where the newest checkpoint is not everywhere, an older one is restored, and then the newest is there again."""
    steps = applied_steps([*lines_of(range(30)), "back 20", "back 10", "back 20", *lines_of(range(20, 25))])
    assert (steps.count, list(steps.hashes)) == (25, list(range(25)))
    with pytest.raises(StepLogError, match="line 33: went back to step 31, of which 30 were applied"):
        applied_steps([*lines_of(range(30)), "back 20", "back 10", "back 31"])
    with pytest.raises(StepLogError, match="line 33: went back to step 12, of which 11 were applied"):
        applied_steps([*lines_of(range(30)), "back 10", *lines_of([10]), "back 12"])


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 3)), min_size=1, max_size=4))
def test_steps_without_a_part_are_one_line_however_many_they_are(turns):
    lines, done, applied = [], 0, []
    for passed, own in turns:
        lines += [f"passed {done} {done + passed}", *lines_of(range(done + passed, done + passed + own))]
        applied += range(done + passed, done + passed + own)
        done += passed + own
    steps = applied_steps(lines)
    assert (steps.count, list(steps.hashes)) == (done, applied)
    middle = turns[0][0] // 2
    assert applied_steps([*lines, f"back {middle}", f"passed {middle} {done}"]).hashes == {}
    with pytest.raises(StepLogError, match=f"step {done + 1} was passed where step {done} was expected"):
        applied_steps([*lines, f"passed {done + 1} {done + 2}"])


@given(st.integers(2, 20), st.data())
def test_a_step_that_is_missing_twice_or_out_of_order_is_found(count, data):
    lines = lines_of(range(count))
    at = data.draw(st.integers(0, count - 2))
    match data.draw(st.sampled_from(["missing", "twice", "swapped", "torn", "back to the future"])):
        case "missing":
            del lines[at]
        case "twice":
            lines.insert(at, lines[at])
        case "swapped":
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
        case "torn":
            lines[at] = lines[at][:9]
        case "back to the future":
            lines.insert(at, f"back {count}")
    with pytest.raises(StepLogError, match=r"^line \d+: "):
        applied_steps(lines)


def test_a_log_goes_on_where_it_ended_and_is_compared_with_another(tmp_path):
    for name, parts in (("one", [b"a", b"b", b"c"]), ("two", [b"a", b"b", b"x"])):
        for first in (0, 2):
            log = StepLog(tmp_path, name, "edge")
            for step, part in list(enumerate(parts))[first : first + 2]:
                log.applied(step, memoryview(part))
            log.close()
    one, two = tmp_path / "one-edge.steps", tmp_path / "two-edge.steps"
    assert check_steps(one) == check_steps(one, one) == 3
    with pytest.raises(StepLogError, match="step 2 is not what"):
        check_steps(one, two)
    two.write_text("".join(two.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(StepLogError, match=r"has 3 steps; .* has 2"):
        check_steps(one, two)
    with pytest.raises(StepLogError, match="cannot be read"):
        check_steps(tmp_path / "none")


def test_an_invalid_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be opened"):
        StepLog(tmp_path / "file", "s", "edge")


@pytest.mark.parametrize("line", ["applied {} aa", "back {}", "passed 0 {}", "passed {} 9"])
@pytest.mark.parametrize("step", ["9" * 5000, "9" * 20, "-1", "1.0", "²"])
def test_a_step_that_is_no_number_of_a_step_is_no_line(line, step):
    with pytest.raises(StepLogError, match=r"^line 1: .* is no line of a step log$"):
        applied_steps([line.format(step)])


def test_a_side_that_begins_with_a_checkpoint_has_had_no_part_in_the_steps_before_it(tmp_path):
    log = StepLog(tmp_path, "session", "trainer")
    log.rolled_back(30)
    log.applied(30, memoryview(b"a"))
    log.rolled_back(20)
    log.passed_over(20, 25)
    log.close()
    assert check_steps(tmp_path / "session-trainer.steps") == 25


def test_a_side_that_had_no_part_for_a_while_goes_on_from_a_checkpoint_of_others(tmp_path):
    log = StepLog(tmp_path, "session", "trainer")
    for step in range(3):
        log.applied(step, memoryview(b"a"))
    log.rolled_back(0)
    log.close()
    log = StepLog(tmp_path, "session", "trainer")
    log.rolled_back(5)
    log.applied(5, memoryview(b"a"))
    log.close()
    steps = applied_steps((tmp_path / "session-trainer.steps").read_text().splitlines())
    assert (steps.count, [*steps.hashes]) == (6, [0, 1, 2, 5])


def test_a_group_logs_the_ranks_of_each_update_and_forgets_those_after_it_went_back(tmp_path):
    log = StepLog(tmp_path, "line", "group")
    log.rolled_back(0)
    log.merged(0, (1, 0), (0, 2), memoryview(b"weights"))
    log.merged(0, (0, 3), (2,), memoryview(b"others"))
    log.merged(1, (1, 0), (0,), memoryview(b"weights"))
    log.rolled_back(1)
    log.merged(1, (1, 0), (0, 1, 2), memoryview(b"weights"))
    lines = (tmp_path / "line-group.steps").read_text().splitlines()
    assert lines[1].split()[:5] == ["merged", "0", "1", "0", "0,2"]
    assert lines[1].split()[5] == lines[3].split()[5] != lines[2].split()[5]
    assert merged_ranks(lines) == {(0, 1, 0): (0, 2), (0, 0, 3): (2,), (1, 1, 0): (0, 1, 2)}


@pytest.mark.parametrize(
    "lines", [["merged 0 0 1 0 a", "merged 0 0 1 1 b"], ["merged 0 0 0 0,x a"], ["merged 0 0 0 a"], ["applied 0 a"]]
)
def test_what_no_group_logs_is_found(lines):
    with pytest.raises(StepLogError):
        merged_ranks(lines)
