"""State of a session that outlives the process, in the one form that both sides store."""

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.checkpoint import CheckpointName, Files, FsspecFiles, LocalFiles, SessionFolder
from shared.errors import StorageError


@pytest.fixture(params=["folder", "store"])
def files(request, tmp_path) -> Files:
    """Give a folder of this machine, and an object store."""
    return (
        LocalFiles(tmp_path / "a")
        if request.param == "folder"
        else FsspecFiles(fsspec.filesystem("memory"), str(tmp_path))
    )


def test_a_record_is_there_as_it_was_written_last(files):
    folder = SessionFolder(files, 1)
    assert folder.read() is None
    folder.write({"subject": "ours", "shared": [1, 7]})
    folder.write({"subject": "theirs"})
    assert SessionFolder(files, 1).read() == {"subject": "theirs"}


def test_a_changed_record_is_not_believed(files):
    folder = SessionFolder(files, 1)
    folder.write({"subject": "ours"})
    files.write("session.json", (files.read("session.json") or b"").replace(b"ours", b"hers"))
    assert folder.read() is None


@given(st.lists(st.integers(1, 2**63), max_size=12))
def test_of_several_that_take_terms_each_is_later_than_all_before(terms):
    files = FsspecFiles(fsspec.filesystem("memory"), "/terms")
    files.clear()
    one, other, highest = SessionFolder(files, 1), SessionFolder(files, 1), 0
    for number, term in enumerate(terms):
        assert (one, other)[number % 2].take_term(term) == (term > highest)
        highest = max(highest, term)
        assert one.term() == other.term() == highest


def test_an_invalid_term_counts_as_none(files):
    for name in ("term-", "term-x", "term-1.json", "term-" + "9" * 21):
        files.write(name, b"")
    assert SessionFolder(files, 1).term() == 0


def test_nothing_is_left_of_a_session_that_was_removed(files):
    folder = SessionFolder(files, 1)
    folder.write({})
    folder.take_term(3)
    folder.checkpoints.save(CheckpointName(0, 1), {}, b"state")
    folder.remove()
    assert (folder.read(), folder.term(), folder.checkpoints.names(), folder.total_bytes()) == (None, 0, [], 0)


def test_a_removal_that_is_cut_short_leaves_nothing_to_go_on_with(tmp_path, monkeypatch):
    folder = SessionFolder(LocalFiles(tmp_path), 1)
    folder.write({})
    folder.checkpoints.save(CheckpointName(0, 1), {}, b"state")

    def fail(_files: LocalFiles) -> None:
        raise StorageError("a crash")

    monkeypatch.setattr(LocalFiles, "clear", fail)
    with pytest.raises(StorageError):
        folder.remove()
    assert folder.read() is None
    assert folder.checkpoints.names() == [(0, 1)]
