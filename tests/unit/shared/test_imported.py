"""Files that are changed after they were imported."""

import os

import pytest

from shared.factory import load_factory
from shared.imported import changed

SOURCE = "from torch import nn\nfrom {name}_parts import WIDTH\ndef net():\n    return nn.Linear(64, WIDTH)\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the name of a new module, and the files of it and of one that it imports."""
    name = f"written_at_{tmp_path.name}"
    files = [tmp_path / f"{name}.py", tmp_path / f"{name}_parts.py"]
    files[0].write_text(SOURCE.format(name=name))
    files[1].write_text("WIDTH = 10\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name, files


@pytest.mark.parametrize("place", [0, 1], ids=["the module", "one that it imports"])
def test_a_file_that_is_written_again_has_changed_until_it_is_as_it_was(package, place):
    name, files = package
    load_factory(f"{name}:net")
    assert not {each.file for each in changed()}.intersection(files)
    was = files[place].stat()
    os.utime(files[place], ns=(was.st_atime_ns, was.st_mtime_ns + 10**9))
    load_factory(f"{name}:net")
    (found,) = [each for each in changed() if each.file in files]
    assert (found.file, found.imported < found.now) == (files[place], True)
    os.utime(files[place], ns=(was.st_atime_ns, was.st_mtime_ns))
    assert not {each.file for each in changed()}.intersection(files)
    files[place].unlink()
    assert not {each.file for each in changed()}.intersection(files)
