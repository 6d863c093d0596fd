"""The ban on private names in tests: whatever a test needs to see, a reader or a metric needs to see, too."""

import ast

import pytest

from tests.conftest import ROOT

PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_assert", "_run", "_exit"}
"""Private in form but public in use: methods of named tuples, an assertion that torch.fx traces, a callback of asyncio,
and the exit of a forked process."""
BY_NAME = {"setattr", "delattr", "getattr", "hasattr", "patch", "object"}
"""Calls that name an attribute in a string: built-in functions, and methods of monkeypatch and unittest.mock."""


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def is_own(value):
    """Tell whether an object is the test's own class or derived from it."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def private_names(source):
    """List the private names of others that a Python module reads, imports or replaces, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in BY_NAME:
            strings = [
                word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            ]
            yield from ((node.lineno, word) for word in strings if is_private(word.rpartition(".")[2]))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("thing._x", ["_x"]),
        ("self.thing._x", ["_x"]),
        ("thing()._x = 3", ["_x"]),
        ("from shared.codec import _x", ["_x"]),
        ("monkeypatch.setattr(codec, '_x', 3)", ["_x"]),
        ("monkeypatch.setattr('shared.codec._x', 3)", ["shared.codec._x"]),
        ("getattr(thing, '_x')", ["_x"]),
        ("self._x + cls._x + super()._x + thing.__len__()", []),
        ("row._replace(x=_x)", []),
    ],
)
def test_the_private_names_of_others_are_found(source, found):
    assert [name for _, name in private_names(source)] == found


def test_no_test_reads_a_private_name_of_what_it_tests():
    read = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in private_names(path.read_text(encoding="utf-8"))
    ]
    assert not read, "\n".join(read)
