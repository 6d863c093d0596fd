"""Held folders: a process holds a folder as long as it lives, and no other process can use it."""

import subprocess
import sys
import time

import fsspec
import pytest

from shared.checkpoint import HELD_SECONDS, FsspecFiles, LocalFiles

HOLD = """
import sys
from pathlib import Path
from shared.checkpoint import LocalFiles
held = LocalFiles(Path(sys.argv[1])).hold()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["folder", "store"])
def place(request, tmp_path):
    store = FsspecFiles(fsspec.filesystem("memory"), str(tmp_path))
    return LocalFiles(tmp_path) if request.param == "folder" else store


def test_one_holds_it_until_it_lets_go(place):
    assert not place.is_held()
    held = place.hold()
    held.renew()
    assert place.is_held()
    assert place.hold() is None
    held.let_go()
    assert not place.is_held()
    place.hold().let_go()


def test_a_process_that_is_killed_holds_nothing(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert LocalFiles(tmp_path).is_held()
        process.kill()
    assert not LocalFiles(tmp_path).is_held()


def test_on_an_object_store_a_process_that_ended_seems_to_live_for_the_time_of_its_lease(tmp_path, monkeypatch):
    files, now = FsspecFiles(fsspec.filesystem("memory"), str(tmp_path)), time.time()
    files.hold()
    for later, is_held in ((HELD_SECONDS - 5, True), (HELD_SECONDS + 5, False)):
        monkeypatch.setattr("shared.checkpoint.object_store.time.time", lambda later=later: now + later)
        assert files.is_held() is is_held
