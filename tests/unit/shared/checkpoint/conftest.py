"""Every kind of place that may hold checkpoints."""

import fsspec
import pytest

from shared.checkpoint import FsspecFiles, LocalFiles, open_files


@pytest.fixture(params=["local", "memory", "file url"])
def files(request, tmp_path):
    if request.param == "local":
        yield LocalFiles(tmp_path / "a" / "b")
    elif request.param == "file url":
        yield open_files(f"file://{tmp_path}/c", "key")
    else:
        memory = open_files("memory://isthmus/tests", "key")
        assert isinstance(memory, FsspecFiles)
        yield memory
        fsspec.filesystem("memory").store.clear()
