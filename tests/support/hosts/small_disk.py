"""A disk that has little room, for the processes of a test: a file system in memory, in a mount namespace of its own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.running import ROOT

_HOLD = 'mount -t tmpfs -o size="$1",mode=0700 none "$2" && echo mounted && exec cat'


class SmallDisk:
    """A disk at `place`, for processes that run `under` its command; `seen` is the same folder as this process reaches it."""

    def __init__(self, place: Path, holder: int) -> None:
        self.place = place
        self.under = ["nsenter", f"--target={holder}", "--mount", f"--wd={ROOT}"]
        self.seen = Path(f"/proc/{holder}/root{place}")

    def fill(self) -> None:
        """Leave no room at all."""
        with (self.seen / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount one of so many bytes over the folder `place`, visible to the caller alone. Skips the test where only root may."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    place.mkdir(parents=True)
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", _HOLD, "sh", str(size_bytes), str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    try:
        if holder.stdout.readline() != "mounted\n":
            pytest.skip(f"no file system can be mounted here: {holder.stderr.read()}")
        yield SmallDisk(place, holder.pid)
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
        holder.stderr.close()
