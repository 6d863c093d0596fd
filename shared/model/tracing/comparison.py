"""The comparison of two runs of one module: their operations must be the same, node by node."""

from typing import Any

from torch import fx

from shared.model.snapshot import same_bits
from shared.model.tracing.leaves import OpaqueError, definition_line
from shared.model.tracing.record import Call, Device, Record


class Mode:
    """Stands in a node's arguments for what follows from the `training` flag of the submodule at `path` ("" is the module
    itself): one value in train mode, and another in eval mode."""

    def __init__(self, path: str, trained: Any, evaluated: Any) -> None:
        self.path, self.trained, self.evaluated = path, trained, evaluated

    @property
    def is_flag(self) -> bool:
        """True if the values are those of the flag itself."""
        return self.trained is True and self.evaluated is False


_FOLLOWING = (bool, int, float, str, type(None))
"""Types of values that may follow the mode."""


def follow_mode(trained: Record, evaluated: Record) -> None:
    """Put a `Mode` in the arguments of the nodes traced in train mode wherever the same node has another value in eval mode.

    Raises OpaqueError for the module whose forward differs between the modes in anything else.
    """
    _compare(trained, evaluated, "in train mode", "in eval mode", modes=True)


def same_graph(evaluated: Record, other: Record, when: str) -> None:
    """Compare two runs in eval mode. Raises OpaqueError for the module whose forward does something else `when`."""
    _compare(evaluated, other, when, "for the example", modes=False)


def _compare(ours: Record, theirs: Record, when: str, otherwise: str, *, modes: bool) -> None:
    differs = _Differences(ours, f"forward() computes something else {when} than {otherwise}")
    pending = [(ours.root_call, theirs.root_call)]
    for our_call, their_call in pending:
        signatures = [
            [_signature(item, record) for item in call.items]
            for call, record in ((our_call, ours), (their_call, theirs))
        ]
        if signatures[0] != signatures[1]:
            place = next(
                (index for index, (one, other) in enumerate(zip(*signatures, strict=False)) if one != other), None
            )
            raise differs.at(our_call, our_call.items[place] if place is not None else None)
        pending += [
            (one, other)
            for one, other in zip(our_call.items, their_call.items, strict=True)
            if isinstance(one, Call) and isinstance(other, Call)
        ]
    pairs = dict(zip(ours.graph.nodes, theirs.graph.nodes, strict=True))
    for node, other in pairs.items():
        call = ours.calls[node]
        path = call.path if modes else None
        try:
            args, kwargs = _merge(node.args, other.args, pairs, path), _merge(node.kwargs, other.kwargs, pairs, path)
        except _DiffersError:
            raise differs.at(call, node) from None
        if modes:
            node.args, node.kwargs = args, kwargs
        if node.target in ours.constants:
            constants = ours.constants[str(node.target)], theirs.constants[str(other.target)]
            if not same_bits(*constants):
                reason = "forward() makes a tensor that changes from call to call"
                raise OpaqueError(call.module, ours.lines[node], reason)


class _DiffersError(Exception):
    """Two arguments differ in more than a value that may follow the mode."""


class _Differences:
    def __init__(self, record: Record, reason: str) -> None:
        self._record, self._reason = record, reason

    def at(self, call: Call, item: Call | fx.Node | None) -> OpaqueError:
        where = self._record.lines[item] if isinstance(item, fx.Node) else definition_line(call.module)
        return OpaqueError(call.module, where, self._reason)


def _merge(ours: Any, theirs: Any, pairs: dict[fx.Node, fx.Node], path: str | None) -> Any:
    """path: of the module whose mode differing values may follow; None where they may follow none."""
    if isinstance(ours, _FOLLOWING) and isinstance(theirs, _FOLLOWING):
        if type(ours) is type(theirs) and repr(ours) == repr(theirs):
            return ours
        if path is not None:
            return Mode(path, ours, theirs)
    if type(ours) is not type(theirs):
        raise _DiffersError
    match ours:
        case fx.Node() if pairs[ours] is theirs:
            return ours
        case tuple() | list() if len(ours) == len(theirs):
            merged = [_merge(one, other, pairs, path) for one, other in zip(ours, theirs, strict=True)]
            return merged if isinstance(ours, list) else tuple(merged)
        case dict() if ours.keys() == theirs.keys():
            return {key: _merge(value, theirs[key], pairs, path) for key, value in ours.items()}
        case slice():
            ends = ((ours.start, theirs.start), (ours.stop, theirs.stop), (ours.step, theirs.step))
            return slice(*(_merge(one, other, pairs, path) for one, other in ends))
        case Mode() | Device():
            return ours
        case _ if repr(ours) == repr(theirs):
            return ours
    raise _DiffersError


def _signature(item: Call | fx.Node, record: Record) -> tuple[Any, ...]:
    """Describe an operation or a call, apart from its arguments and from the numbers that constants have."""
    if isinstance(item, Call):
        return ("call", item.path)
    if item.target in record.constants:
        return ("constant",)
    return (item.op, getattr(item.target, "__qualname__", item.target))
