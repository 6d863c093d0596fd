"""Server reflection that includes the contract's comments: `grpcurl describe` prints the manual.

The code that protoc makes for Python holds no comments; `shared/wire/commented.binpb` does.
"""

from functools import cache
from importlib.resources import files
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_reflection.v1alpha import reflection

_COMMENTED = files("shared.wire") / "commented.binpb"


def reflect(server: grpc.aio.Server, *services: str) -> None:
    """Let a server explain these services, and reflection itself."""
    pool: Any = _Pool()
    reflection.enable_server_reflection([*services, reflection.SERVICE_NAME], server, pool=pool)


@cache
def _commented() -> dict[str, FileDescriptorProto]:
    """Our files with their comments, by name."""
    return {file.name: file for file in FileDescriptorSet.FromString(_COMMENTED.read_bytes()).file}


class _File:
    """A file of the pool, as much of it as reflection asks for."""

    def __init__(self, known: FileDescriptor) -> None:
        self._known = known
        self.name = known.name

    @property
    def dependencies(self) -> "list[_File]":
        return [_File(other) for other in self._known.dependencies]

    def CopyToProto(self, proto: FileDescriptorProto) -> None:
        if self.name in _commented():
            proto.CopyFrom(_commented()[self.name])
        else:
            self._known.CopyToProto(proto)


class _Pool:
    """The pool of this process, whose files have their comments."""

    def __init__(self) -> None:
        self._known = descriptor_pool.Default()

    def FindFileByName(self, name: str) -> _File:
        return _File(self._known.FindFileByName(name))

    def FindFileContainingSymbol(self, symbol: str) -> _File:
        return _File(self._known.FindFileContainingSymbol(symbol))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._known, name)
