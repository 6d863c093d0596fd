"""Places of checkpoints: local folders and object stores behave alike."""

import time
from pathlib import Path

import pytest

from shared.checkpoint import (
    open_files,
)
from shared.errors import ConfigError
from shared.files.private_files import state_directory


def test_what_is_written_can_be_read_and_is_gone_when_removed(files):
    assert (files.names(), files.folders(), files.read("x")) == ([], [], None)
    files.write("x", b"one")
    files.write("x", b"two")
    files.folder("inner").write("y", b"three")
    assert (files.names(), files.folders()) == (["x"], ["inner"])
    assert (files.read("x"), files.folder("inner").read("y")) == (b"two", b"three")
    files.remove("x")
    files.remove("x")
    assert files.read("x") is None
    files.clear()
    assert (files.names(), files.folders()) == ([], [])
    files.clear()


def test_a_folder_says_when_it_was_last_written(files):
    assert files.written_at() is None
    began = time.time()
    files.write("x", b"one")
    first = files.written_at()
    assert first == pytest.approx(began, abs=60)
    files.write("y", b"two")
    assert first <= files.written_at() == pytest.approx(began, abs=60)
    files.folder("inner").write("z", b"three")
    files.remove("x")
    files.remove("y")
    assert files.written_at() is None


def test_a_url_without_a_driver_is_one_sentence():
    with pytest.raises(ConfigError, match=r"checkpoints.location: nowhere://x cannot be opened"):
        open_files("nowhere://x", "checkpoints.location")


def test_auto_is_the_services_or_the_users_state_directory():
    assert state_directory({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}) == Path("/var/lib/a")
    assert state_directory({"XDG_STATE_HOME": "/x"}) == Path("/x/isthmus")
    assert state_directory({}) == Path.home() / ".local/state/isthmus"
