"""A process that may not do what a sandbox forbids."""

from pathlib import Path


def forbid_priorities(folder: Path) -> str:
    """Return the PYTHONPATH under which a process may not change priorities, as under a unit that filters system calls."""
    (folder / "sitecustomize.py").write_text(  # the module that Python imports first of all
        "import os\n\n\ndef setpriority(*_):\n    raise PermissionError('not here')\n\n\nos.setpriority = setpriority\n"
    )
    return str(folder)
