"""What the command lines of all benchmarks share."""

import argparse
from pathlib import Path


def benchmark_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m benchmarks.NAME` that knows --json, where the figures go besides the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser
