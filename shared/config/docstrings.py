"""The docstrings of the fields of sections, from their source.

They are read where a file or a page shows them: reading them takes longer than all else that a command does before it begins.
"""

import ast
import functools
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path


def docstring_of(kind: type, field: str) -> str | None:
    """Return the docstring below the last annotation of a field in a class and its bases; None where there is none."""
    for each in kind.__mro__:
        if field in vars(each).get("__annotations__", {}):
            return _docstrings(each.__module__).get(f"{each.__qualname__}.{field}")
    return None


@functools.cache
def _docstrings(module: str) -> dict[str, str]:
    """The docstrings of all fields in a module, by the class's and the field's names."""
    source = Path(inspect.getfile(sys.modules[module])).read_text(encoding="utf-8")
    return dict(_in_body(ast.parse(source).body, ""))


def _in_body(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _in_body(node.body, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from _in_body(node.body, f"{prefix}{node.name}.")
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield f"{prefix}{name}", inspect.cleandoc(text)
