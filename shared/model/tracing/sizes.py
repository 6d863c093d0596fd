"""Sizes of traced tensors, and numbers that follow from them: plain numbers that remember where in the graph they come from.

A number has its value on the example, so that comparisons, loops and messages see what they see without a trace.
"""

import operator
from collections.abc import Callable
from typing import Any

from torch import fx

RecordNumber = Callable[[Callable[..., Any], tuple[Any, ...], Any], Any]
"""Records a function of numbers, its arguments, and its value."""


class _Traced:
    """Remembers its origin, and so does everything that is computed of it."""

    node: fx.Node
    record: RecordNumber


class SizeInt(_Traced, int):
    """A whole number, as the size of a dimension."""


class SizeFloat(_Traced, float):
    """A number that was computed from sizes."""


Size = SizeInt | SizeFloat


def size(value: int | float, node: fx.Node, record: RecordNumber) -> Size:
    """Return `value` as a number that `node` gives."""
    made: Size = SizeInt(value) if isinstance(value, int) else SizeFloat(value)
    made.node, made.record = node, record
    return made


def _computed(function: Callable[..., Any], *args: Any) -> Any:
    if not all(isinstance(each, int | float) for each in args):
        return NotImplemented
    value = function(*map(_plain, args))
    record = next(each.record for each in args if isinstance(each, _Traced))
    return record(function, args, value)


def _plain(number: int | float) -> int | float:
    return int(number) if isinstance(number, int) else float(number)


def _operations(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operation of two numbers as methods of its left one and of its right one."""
    return (
        lambda left, right: _computed(function, left, right),
        lambda right, left: _computed(function, left, right),
    )


for _name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"):
    for _prefix, _method in zip(("__", "__r"), _operations(getattr(operator, _name)), strict=True):
        setattr(_Traced, f"{_prefix}{_name}__", _method)
setattr(_Traced, "__neg__", lambda number: _computed(operator.neg, number))  # noqa: B010 (mypy knows no such method)
