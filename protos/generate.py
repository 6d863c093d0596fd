"""Generates `shared/wire` from the protos: `python protos/generate.py`, or with `--check` only compares.

protoc names Python modules after the proto's package; ours live inside `shared.wire`, so its imports are rewritten. What it
makes for Python leaves the comments out, so they are kept beside it: server reflection gives them away.
"""

import re
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
TARGET = PROTOS.parent / "shared" / "wire"
COMMENTED = "commented.binpb"
HEADER = '"""Generated from protos/ by protos/generate.py; never edited."""\n'


def generate(target: Path) -> None:
    """Write messages and their types for every proto below `target`: `shared.transport.rpc.contract` needs no more."""
    files = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("isthmus/**/*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    outputs = [f"--python_out={target}", f"--mypy_out=quiet:{target}"]
    plugin = f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}"  # PATH need not know it
    described = target / COMMENTED
    outputs += ["--include_source_info", f"--descriptor_set_out={described}"]
    code = protoc.main(["protoc", plugin, f"-I{PROTOS}", f"-I{well_known}", *outputs, *files])
    if code:
        raise SystemExit(code)
    _keep_comments(described)
    for path in (*target.glob("isthmus/**/*.py"), *target.glob("isthmus/**/*.pyi")):
        path.write_text(re.sub(r"^from isthmus\.", "from shared.wire.isthmus.", path.read_text(), flags=re.MULTILINE))
    for folder in (target, target / "isthmus", target / "isthmus" / "v1"):
        (folder / "__init__.py").write_text(HEADER)


def _keep_comments(path: Path) -> None:
    """Leave of where everything stands in the protos only what has a comment."""
    described = FileDescriptorSet.FromString(path.read_bytes())
    for file in described.file:
        commented = [place for place in file.source_code_info.location if place.leading_comments]
        del file.source_code_info.location[:]
        file.source_code_info.location.extend(commented)
    path.write_bytes(described.SerializeToString(deterministic=True))


def main() -> None:
    """Generate, or compare what is there with what would be generated."""
    if "--check" not in sys.argv:
        generate(TARGET)
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = _files(Path(scratch))
    there = _files(TARGET)
    stale = sorted(str(name) for name in fresh.keys() | there.keys() if fresh.get(name) != there.get(name))
    if stale:
        raise SystemExit(f"stale generated code: {', '.join(stale)}; run make protos")


def _files(folder: Path) -> dict[Path, bytes]:
    """What was generated into a folder."""
    paths = [path for path in folder.rglob("*.*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


if __name__ == "__main__":
    main()
