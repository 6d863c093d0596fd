"""The data of both trainings, made of what is installed: digits as pictures, and lines of Python's own library as texts."""

import ast
import csv
import io
import json
import random
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from edge_agent.data import digits

MODULES = (
    *("argparse", "ast", "difflib", "doctest", "inspect", "pickle", "pickletools", "shutil", "socket", "subprocess"),
    *("tarfile", "threading", "typing", "zipfile"),
)
"""Modules whose lines are read."""
EPOCHS, BATCH = 3, 32
"""As the programs have them."""
_SHORTEST = 24


def save_digits(folder: Path, part: float = 1.0) -> None:
    """Write digits/train/LABEL/NUMBER.png and digits/test/..., as large as `part` of all that there are."""
    from PIL import Image

    for split in ("train", "test"):
        samples = digits(split)
        for number in range(int(len(samples) * part)):
            pixels, label = samples[number]
            place = folder / "digits" / split / str(int(label))
            place.mkdir(parents=True, exist_ok=True)
            scaled = (pixels[0] - pixels.min()) / (pixels.max() - pixels.min()) * 255
            Image.fromarray(np.asarray(scaled).astype(np.uint8)).save(place / f"{number:04}.png")
    _save_steps(folder, int(len(digits("train")) * part))


def save_texts(folder: Path, part: float = 1.0) -> None:
    """Write train.csv and test.csv with the columns text and label."""
    chance = random.Random(0)
    kinds = [sorted(set(lines)) for lines in _lines()]
    count = min(600, *map(len, kinds))
    rows = [(text, label) for label, lines in enumerate(kinds) for text in chance.sample(lines, count)]
    chance.shuffle(rows)
    rows = rows[: int(len(rows) * part)]
    for name, chosen in (("train.csv", rows[len(rows) // 5 :]), ("test.csv", rows[: len(rows) // 5])):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *chosen])
    _save_steps(folder, len(rows) - len(rows) // 5)


MAKERS: dict[str, Callable[[Path, float], None]] = {"image-folder": save_digits, "text-adapters": save_texts}
"""The maker of the data of each training, by the folder of its programs."""


def _save_steps(folder: Path, samples: int) -> None:
    """Write the number of steps that all programs make, to steps.json."""
    (folder / "steps.json").write_text(json.dumps(EPOCHS * (samples // BATCH)))


def _lines() -> tuple[list[str], list[str]]:
    """List lines of code, label 0, and of comments and documentation, label 1."""
    code: list[str] = []
    prose: list[str] = []
    for name in MODULES:
        source = Path(sysconfig.get_path("stdlib"), f"{name}.py").read_text(encoding="utf-8")
        described: set[int] = set()
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                described.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                prose += _long(iter(node.value.value.splitlines()))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                prose += _long(iter([token.string]))
        lines = enumerate(source.splitlines(), start=1)
        code += _long(line for number, line in lines if number not in described and "#" not in line)
    return code, prose


def _long(lines: Iterator[str]) -> list[str]:
    """List those long enough, without what shows their kind at once."""
    stripped = (line.strip().lstrip("#").strip() for line in lines)
    return [line for line in stripped if len(line) >= _SHORTEST]
