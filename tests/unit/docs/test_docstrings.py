"""The rule of docstrings: each opens with a verb or a noun that tells what a thing is or does."""

import ast
from collections.abc import Iterator

from tests.conftest import ROOT

REFUSED = "how of that those what whatever when where whether which who whoever whom whose why"
GENERATED = "shared/wire/"
"""Folder of generated code."""
FOLDERS = ("benchmarks", "cloud_trainer", "deploy", "edge_agent", "shared", "tests")


def test_every_docstring_opens_with_a_verb_or_a_noun():
    refused = [
        f"{place}:{line}: {text.splitlines()[0]}"
        for place, source in _sources()
        for line, text in docstrings(source)
        if opens_badly(text)
    ]
    assert refused == []


def test_the_docstrings_of_modules_classes_functions_and_fields_are_judged():
    source = (
        '"""Whether."""\nA = 1\n"""How many."""\nclass B:\n    """Who."""\n    c: int\n    """Of all."""\n'
        '    def d(self):\n        """What."""\n        self.e = 1\n        """When."""\n        "".join("whose")\n'
        'def f():\n    """Count the things that are whole."""\n'
    )
    assert [line for line, text in docstrings(source) if opens_badly(text)] == [1, 3, 5, 7, 9, 11]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string that stands first in a body, or under an assignment."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documents = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, one in zip([None, *body], body, strict=False):
            match one:
                case ast.Expr(value=ast.Constant(value=str(text))) if isinstance(
                    before, ast.Assign | ast.AnnAssign
                ) or (before is None and documents):
                    found.append((one.lineno, text))
    yield from sorted(found)


def opens_badly(text: str) -> bool:
    """Tell whether a docstring opens with a word that names nothing."""
    return text.split()[0].strip("\",.:;'").lower() in REFUSED.split()


def _sources() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith(GENERATED):
                yield place, path.read_text(encoding="utf-8")
