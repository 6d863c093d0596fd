"""The two console scripts. Whoever imports this module finds our packages before others of the same names.

Imports nothing but the standard library, so that what can go wrong while everything else is imported ends in one sentence.
"""

import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NoReturn

FOLDER = Path(__file__).resolve().parent
"""Folder of our packages: a clone, or that of what is installed."""
PACKAGES = ("edge_agent", "cloud_trainer", "shared")
_INTERRUPTED = 130
"""The code of `shared.errors.ExitCode`, which is not imported yet."""


class _OurPackages:
    """A finder of modules: the packages of Isthmus are those beside this file, whatever else the path has."""

    @staticmethod
    def find_spec(name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find one of our packages; None for all else."""
        return PathFinder.find_spec(name, [str(FOLDER)]) if path is None and name in PACKAGES else None


if _OurPackages not in sys.meta_path:
    sys.meta_path.insert(0, _OurPackages)


def edge_agent() -> None:
    """`edge-agent`."""
    _run("edge-agent", "edge_agent.main")


def cloud_trainer() -> None:
    """`cloud-trainer`."""
    _run("cloud-trainer", "cloud_trainer.main")


def _run(name: str, module: str) -> None:
    with importing(name):
        main = importlib.import_module(module).main
    main()


@contextmanager
def importing(name: str) -> Iterator[None]:
    """Have Ctrl-C end the process in one sentence while modules are imported. name: of the program.

    A KeyboardInterrupt inside an import may come out as any other error, or leave a package half there. What modules consist
    of lives as long as the process: no garbage is looked for among it, neither meanwhile nor later.
    """

    def interrupted(*_: object) -> NoReturn:
        _end(name, "interrupted", _INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():  # Ctrl-C does not come here
        yield
        return
    before = signal.signal(signal.SIGINT, interrupted)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGINT, before)


def _end(name: str, sentence: str, code: int) -> NoReturn:
    os.write(sys.stderr.fileno(), f"{name}: {sentence}\n".encode())
    os._exit(code)
