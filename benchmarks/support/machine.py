"""Machine that a figure was measured on; printed beside every table."""

import os
import platform
from pathlib import Path

import torch


def machine() -> str:
    """One line: processor, cores, kernel, Python, torch and its threads."""
    name = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open() as lines:
            name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return (
        f"{name}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"torch {torch.__version__} with {torch.get_num_threads()} thread(s)"
    )
