"""The figures of a member's newest steps: the next process has those of a killed one, and none of another run."""

import os

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sessions.finished import SUMMARY
from edge_agent.training.step_figures import MOST_STEPS, StepFigure, StepFigures


def noted(folder, steps):
    figures = StepFigures()
    figures.keep(folder)
    for step in steps:
        figures.note(step, StepFigure(step / 3, step, 1))
    return figures


def steps_in(figures, first, stop):
    return [figure.samples for figure in figures.between(first, stop)]


@given(count=st.integers(0, 40), first=st.integers(0, 40), stop=st.integers(0, 40), gone=st.integers(0, 40))
def test_what_is_between_two_steps_is_all_that_was_noted_and_does_not_come_once_more(count, first, stop, gone):
    figures = noted(None, range(count))
    figures.forget_from(gone)
    assert steps_in(figures, first, stop) == [step for step in range(first, stop) if step < min(count, gone)]


def test_the_next_process_has_them_with_every_bit(tmp_path):
    noted(tmp_path, range(7))
    again = noted(tmp_path, [])
    assert list(again.between(2, 9)) == [StepFigure(step / 3, step, 1) for step in range(2, 7)]


def test_the_newest_are_kept(tmp_path):
    figures = noted(tmp_path, range(MOST_STEPS + 5))
    assert steps_in(figures, 0, 10) == list(range(5, 10))
    assert steps_in(figures, 0, MOST_STEPS + 5) == list(range(5, MOST_STEPS + 5))


def test_those_of_a_run_that_has_its_result_are_not_anothers(tmp_path):
    noted(tmp_path, range(7))
    (tmp_path / SUMMARY).write_text("{}")
    os.utime(tmp_path / SUMMARY, (2**32, 2**32))
    assert steps_in(noted(tmp_path, []), 0, 7) == []


def test_a_page_of_another_size_is_none_and_an_end_leaves_nothing(tmp_path):
    noted(tmp_path, range(7))
    (page,) = tmp_path.iterdir()
    page.write_bytes(b"x" * 100)
    figures = noted(tmp_path, [])
    assert steps_in(figures, 0, 7) == []
    figures.end()
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_that_can_be_written_they_are_in_memory(tmp_path):
    (tmp_path / "file").write_text("")
    assert steps_in(noted(tmp_path / "file", range(3)), 0, 3) == [0, 1, 2]


def test_who_is_no_member_keeps_none():
    figures = StepFigures()
    figures.note(0, StepFigure(1.0, 1, 0))
    figures.forget_from(0)
    assert list(figures.between(0, 1)) == []
