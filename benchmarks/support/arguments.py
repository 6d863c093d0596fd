"""Arguments that the command lines of all benchmarks share."""

import argparse
from pathlib import Path


def benchmark_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m benchmarks.NAME` that knows --json, where the figures go besides the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


def above_zero(text: str) -> int:
    """Return a number of at least 1. Raises ArgumentTypeError for another."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def numbers(text: str) -> range:
    """'3' is that number alone, '0-4' the numbers from the first to the last. Raises ArgumentTypeError where there is none."""
    first, _, last = text.partition("-")
    if not (chosen := range(int(first), int(last or first) + 1)):
        raise argparse.ArgumentTypeError(f"{text} ends before it begins")
    return chosen
