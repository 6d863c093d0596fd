"""Generates `shared/wire` from the protos: `python protos/generate.py`, or with `--check` only compares.

protoc names Python modules after the proto's package; ours live inside `shared.wire`, so its imports are rewritten.
"""

import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
TARGET = PROTOS.parent / "shared" / "wire"
HEADER = '"""Generated from protos/ by protos/generate.py; never edited."""\n'


def generate(target: Path) -> None:
    """Write messages, stubs and their types for every proto below `target`."""
    files = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("isthmus/**/*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    outputs = [f"--python_out={target}", f"--grpc_python_out={target}", f"--mypy_out=quiet:{target}"]
    plugin = f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}"  # PATH need not know it
    code = protoc.main(["protoc", plugin, f"-I{PROTOS}", f"-I{well_known}", *outputs, *files])
    if code:
        raise SystemExit(code)
    for path in target.glob("isthmus/**/*.py*"):
        path.write_text(re.sub(r"^from isthmus\.", "from shared.wire.isthmus.", path.read_text(), flags=re.MULTILINE))
    for folder in (target, target / "isthmus", target / "isthmus" / "v1"):
        (folder / "__init__.py").write_text(HEADER)


def main() -> None:
    """Generate, or compare what is there with what would be generated."""
    if "--check" not in sys.argv:
        generate(TARGET)
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {path.relative_to(scratch): path.read_text() for path in Path(scratch).rglob("*.py*")}
    there = {
        path.relative_to(TARGET): path.read_text() for path in TARGET.rglob("*.py*") if "__pycache__" not in path.parts
    }
    stale = sorted(str(name) for name in fresh.keys() | there.keys() if fresh.get(name) != there.get(name))
    if stale:
        raise SystemExit(f"stale generated code: {', '.join(stale)}; run make protos")


if __name__ == "__main__":
    main()
