"""Commands that run no model, from their start to their end: what a user waits for."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_agent.planning import Linear, ProfiledBlock, pair_profile, profile_to_json
from shared.errors import ExitCode

PROFILE = pair_profile(
    model="two blocks",
    batch_size=8,
    blocks=(ProfiledBlock("first", 1e6), ProfiledBlock("second", 2e6)),
    feature_bytes=(None, 4e6, None),
    gradient_bytes=(None, 4e6, None),
    edge_seconds=(None, 1.0, 2.0),
    cloud_seconds=(None, 0.2, 0.0),
    encode=Linear(0.1, 1e-7),
    min_bits=None,
    max_staleness=3,
)
COMMANDS = {
    "edge_agent": (
        "--help",
        "plan --profile profile.json --uplink 8mbit --downlink 8mbit",
        "status --control=unix:none.sock",
        "sessions --control=unix:none.sock",
        "forget nobodys",
    ),
    "cloud_trainer": ("--help", "status --control=unix:none.sock", "sessions --control=unix:none.sock"),
}
"""By console script. Nobody runs and nothing is stored, so most of them say so: that takes what an answer takes but for the
answer."""


@dataclass(frozen=True)
class Run:
    """Seconds of one run of a command: that pass, and of processor time."""

    wall: float
    processor: float


def answered(tree: Path, script: str, arguments: str, folder: Path) -> Run:
    """One run of a command of a checkout in `folder`, where compiled modules are kept too."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", f"import isthmus_entry_points; isthmus_entry_points.{script}()", *arguments.split()],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(tree),
            "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode != ExitCode.INTERNAL, arguments
    return Run(wall, usage.ru_utime + usage.ru_stime)


def all_answered(trees: Mapping[str, Path], repeats: int) -> dict[str, dict[str, list[Run]]]:
    """The repeats of every command by the name of the checkout, after one run that compiles."""
    found: dict[str, dict[str, list[Run]]] = {}
    with tempfile.TemporaryDirectory(prefix="isthmus-") as name:
        folder = Path(name)
        (folder / "profile.json").write_text(profile_to_json(PROFILE))
        for script, commands in COMMANDS.items():
            for arguments in commands:
                runs: dict[str, list[Run]] = {tree: [] for tree in trees}
                for _ in range(repeats + 1):
                    for tree, path in trees.items():
                        runs[tree].append(answered(path, script, arguments, folder))
                shown = f"{script.replace('_', '-')} {arguments.partition(' --')[0]}"
                found[shown] = {tree: every[1:] for tree, every in runs.items()}
    return found
