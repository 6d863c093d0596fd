"""Trend of the figures of a run while a person watches it, as a row of bars."""

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.wire.isthmus.v1 import control_pb2 as pb

_BARS = "▁▂▃▄▅▆▇█"
_LOOKS = 40
"""As many bars as a line of eighty columns has room for."""


class Trend:
    """The last looks at a run."""

    def __init__(self) -> None:
        self._speeds: deque[float] = deque(maxlen=_LOOKS)
        self._losses: deque[float] = deque(maxlen=_LOOKS)

    def add(self, status: "pb.EdgeStatus") -> None:
        """One more look."""
        if status.HasField("samples_per_second"):
            self._speeds.append(status.samples_per_second)
        if status.HasField("loss"):
            self._losses.append(status.loss)

    @property
    def speed(self) -> str:
        """Samples a second, the newest last."""
        return bars(self._speeds)

    @property
    def loss(self) -> str:
        """The loss, the newest last."""
        return bars(self._losses)


def bars(values: Sequence[float]) -> str:
    """A bar for each value, as high as it stands between the least and the greatest; one that is no number has a cross."""
    finite = [value for value in values if math.isfinite(value)]
    least, greatest = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(_BARS) - 1) / (greatest - least) if greatest > least else 0.0
    return "".join(_BARS[round((value - least) * scale)] if math.isfinite(value) else "×" for value in values)
