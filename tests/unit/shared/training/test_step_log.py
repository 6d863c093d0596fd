"""The checker of step logs: it accepts what exactly-once leaves behind, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import StepLogError, StorageError
from shared.training.step_log import StepLog, applied_steps, check_steps


def lines_of(steps):
    return [f"applied {step} {step:016x}" for step in steps]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6), st.integers(0, 12))
def test_whatever_was_gone_back_from_the_rest_counts(lineages, last):
    lines, done = [], 0
    for forward, back in lineages:
        lines += lines_of(range(done, done + forward))
        done = min(done + forward, back)
        lines.append(f"back {done}")
    lines += lines_of(range(done, done + last))
    assert applied_steps(lines) == [f"{step:016x}" for step in range(done + last)]


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


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be opened"):
        StepLog(tmp_path / "file", "s", "edge")


@pytest.mark.parametrize("line", ["applied {} aa", "back {}"])
@pytest.mark.parametrize("step", ["9" * 5000, "9" * 20, "-1", "1.0", "²"])
def test_a_step_that_is_no_number_of_a_step_is_no_line(line, step):
    with pytest.raises(StepLogError, match=r"^line 1: .* is no line of a step log$"):
        applied_steps([line.format(step)])
