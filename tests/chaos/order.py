"""What an agent really did, in order, and what that says of invariant 3.

Written down where the edge's blocks run, below everything that counts steps: should admission or the pipeline let too much
into flight, this shows it. Lines survive a kill, because each is one write.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from shared.training.policies import Replay


class Worst(NamedTuple):
    """The most that was seen of what K bounds."""

    staleness: int = 0
    in_flight: int = 0


def record(path: Path) -> None:
    """Write every forward and backward of this process to `path`, and every time that it begins with nothing in flight."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write_first(name: str, line: Callable[..., str]) -> None:
        original = getattr(Replay, name)

        def call(*arguments: Any, **more: Any) -> Any:
            os.write(handle, line(*arguments).encode())
            return original(*arguments, **more)

        setattr(Replay, name, call)

    write_first("__init__", lambda *_: "fresh\n")
    write_first("forward", lambda _policy, step, *_: f"forward {step}\n")
    write_first("backward", lambda _policy, step, *_: f"backward {step}\n")


def worst(lines: Iterable[str]) -> Worst:
    """What the lines come to. Raises ValueError for a gradient of a batch that is not in flight."""
    result, in_flight = Worst(), dict[int, None]()
    for line in lines:
        match line.split():
            case ["fresh"]:
                in_flight.clear()
            case ["forward", step]:
                in_flight[int(step)] = None
                result = result._replace(in_flight=max(result.in_flight, len(in_flight)))
            case ["backward", step]:
                if int(step) not in in_flight:
                    raise ValueError(f"the gradient of step {step} was applied, which is not in flight")
                result = result._replace(staleness=max(result.staleness, max(in_flight) - int(step)))
                del in_flight[int(step)]
    return result


def exceeds(seen: Worst, staleness: int) -> str:
    """In what a run under the limit K went past it; empty when in nothing."""
    if seen.staleness > staleness:
        return f"a gradient was {seen.staleness} steps stale; K is {staleness}"
    if seen.in_flight > staleness + 1:
        return f"{seen.in_flight} batches were in flight at once; K is {staleness}"
    return ""
