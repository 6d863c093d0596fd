"""Files that belong together are replaced together or not at all."""

from functools import partial

import pytest

from shared.errors import StorageError
from shared.files.whole_file import write_together


def writes(folder, words, fails=""):
    def write(word, scratch):
        scratch.write_text(word)
        if word == fails:
            raise OSError(28, "No space left on device")

    return {folder / f"{number}.txt": partial(write, word) for number, word in enumerate(words)}


def there(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("fails", ["a", "b", "c"])
@pytest.mark.parametrize("aside", [None, "earlier"])
def test_if_one_file_cannot_be_written_all_are_unchanged(tmp_path, fails, aside):
    write_together(writes(tmp_path, "xyz"))
    before = there(tmp_path)
    with pytest.raises(StorageError, match=f"{'abc'.index(fails)}.txt cannot be written: No space left on device"):
        write_together(writes(tmp_path, "abc", fails), aside and tmp_path / aside)
    assert there(tmp_path) == before


def test_where_one_has_no_place_those_that_were_moved_aside_come_back(tmp_path):
    write_together(writes(tmp_path, "xy"))
    (tmp_path / "2.txt").mkdir()
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "2.txt").touch()
    before = there(tmp_path)
    with pytest.raises(StorageError, match=r"2\.txt cannot be written"):
        write_together(writes(tmp_path, "abc"), tmp_path / "earlier")
    assert there(tmp_path) == before


def test_former_files_are_kept_aside_on_request(tmp_path):
    write_together(writes(tmp_path, "x"))
    write_together(writes(tmp_path, "ab"), tmp_path / "deep" / "earlier")
    assert there(tmp_path) == {"0.txt": "a", "1.txt": "b", "deep/earlier/0.txt": "x"}


def test_what_belongs_to_the_former_files_goes_aside_with_them(tmp_path):
    write_together(writes(tmp_path, "xyz"))
    write_together(writes(tmp_path, "ab"), tmp_path / "earlier", [tmp_path / "2.txt", tmp_path / "3.txt"])
    assert there(tmp_path) == {
        **{"0.txt": "a", "1.txt": "b"},
        **{f"earlier/{number}.txt": word for number, word in enumerate("xyz")},
    }
