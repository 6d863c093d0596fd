"""Order of an agent's work with each of its stages, and the check of invariant 3 on it.

Written down where the edge's blocks run, below everything that counts steps: should admission or the pipeline let too much
into flight, this shows it. Lines survive a kill, because each is one write.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from shared.execution.blocks import PlacedBlocks


class Worst(NamedTuple):
    """The most that was seen of what K bounds."""

    staleness: int = 0
    in_flight: int = 0


def record(path: Path) -> None:
    """Write every forward and backward of this process to `path`, and every time that it begins with nothing in flight."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write_first(name: str, line: Callable[..., str]) -> None:
        original = getattr(PlacedBlocks, name)

        def call(*arguments: Any, **more: Any) -> Any:
            os.write(handle, line(*arguments).encode())
            return original(*arguments, **more)

        setattr(PlacedBlocks, name, call)

    write_first("__init__", lambda *_: "fresh\n")
    write_first("forward", lambda _blocks, step, tile, *_: f"forward {tile.first} {step}\n")
    write_first("backward", lambda _blocks, step, tile, *_: f"backward {tile.first} {step}\n")


def worst(lines: Iterable[str]) -> Worst:
    """Return the worst that the lines show. Raises ValueError for a gradient of a batch that is not in flight."""
    result, in_flight_of = Worst(), defaultdict[str, set[int]](set)
    for line in lines:
        match line.split():
            case ["fresh"]:
                in_flight_of.clear()
            case ["forward", stage, step]:
                in_flight = in_flight_of[stage]
                in_flight.add(int(step))
                result = result._replace(in_flight=max(result.in_flight, len(in_flight)))
            case ["backward", stage, step]:
                in_flight = in_flight_of[stage]
                if int(step) not in in_flight:
                    raise ValueError(f"the gradient of step {step} was applied, which is not in flight")
                result = result._replace(staleness=max(result.staleness, max(in_flight) - int(step)))
                in_flight.remove(int(step))
    return result


def exceeds(seen: Worst, staleness: int) -> str:
    """In what a run under the limit K went past it; empty when in nothing."""
    if seen.staleness > staleness:
        return f"a gradient was {seen.staleness} steps stale; K is {staleness}"
    if seen.in_flight > staleness + 1:
        return f"{seen.in_flight} batches were in flight at once; K is {staleness}"
    return ""
