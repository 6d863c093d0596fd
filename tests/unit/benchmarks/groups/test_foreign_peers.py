"""Peers beside a group whose workers need a Python of their own."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.groups.foreign_peers import FLOWER, MXNET, step_seconds
from benchmarks.groups.links import MIXES
from shared.errors import IsthmusError

HERE = SimpleNamespace(address="127.0.0.1", command=list)


@pytest.mark.parametrize(("peer", "library"), [(FLOWER, "flwr"), (MXNET[0], "mxnet")])
def test_a_python_without_the_library_is_told_of(peer, library):
    with pytest.raises(IsthmusError, match=rf"(?s){peer.name} failed: .*No module named '{library}'"):
        step_seconds(peer, Path(sys.executable), MIXES[0].layers, HERE, [HERE], 2)
