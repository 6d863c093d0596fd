"""The wheel of this tree, and nothing of the tree beside it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.running import ROOT

_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "isthmus.py", "isthmus_entry_points.py")


def built_wheel(folder: Path) -> Path:
    """Build the wheel into a folder."""
    source = folder / "source"
    for name in ("shared", "edge_agent", "cloud_trainer"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _SOURCES:
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    subprocess.run([*pip, source], check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    shutil.rmtree(source)
    (wheel,) = folder.glob("isthmus-*.whl")
    return wheel
