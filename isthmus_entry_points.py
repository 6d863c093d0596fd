"""The two console scripts: they see to it that our packages are the ones that Python finds, and then begin.

Imports nothing but the standard library, so that what can go wrong while everything else is imported ends in one sentence.
"""

import gc
import importlib
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

_PACKAGES = {"shared": "wire", "edge_agent": "main.py", "cloud_trainer": "main.py"}
"""Our packages, and a file or folder that each has."""
_CONFIG, _INTERRUPTED = 3, 130
"""Two codes of `shared.errors.ExitCode`, which cannot be imported before it is known to be ours."""


def edge_agent() -> None:
    """`edge-agent`."""
    _run("edge-agent", "edge_agent.main")


def cloud_trainer() -> None:
    """`cloud-trainer`."""
    _run("cloud-trainer", "cloud_trainer.main")


def _run(name: str, module: str) -> None:
    with importing(name):
        for package, part in _PACKAGES.items():
            if (folder := _stranger(package, part)) is not None:
                sentence = (
                    f"{folder} hides the package {package} of Isthmus; rename it, or take its folder out of PYTHONPATH"
                )
                _end(name, sentence, _CONFIG)
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


def _stranger(package: str, part: str) -> Path | None:
    """What Python would import in the place of one of our packages; None where it is ours."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if any((folder / part).exists() for folder in folders):
        return None
    return folders[0] if folders else Path(spec.origin or package)


def _end(name: str, sentence: str, code: int) -> NoReturn:
    os.write(sys.stderr.fileno(), f"{name}: {sentence}\n".encode())
    os._exit(code)
