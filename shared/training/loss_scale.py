"""The scale of the loss in float16, so that small gradients do not vanish, as `torch.amp.GradScaler` has it.

Micikevicius et al., Mixed Precision Training (2018), 3.2. One worker has it, and tells each step's to the others. All gradients
of an update have one scale. Where one overflows, no block is updated, and the scale falls; it rises after many finite updates.
"""

import math
from collections import deque
from typing import Any

from shared.errors import ProtocolError, StorageError

FIRST, GROWTH, BACKOFF, GROWTH_UPDATES = 2.0**16, 2.0, 0.5, 2000
"""Defaults of `torch.amp.GradScaler`."""
LEAST, MOST = 2.0**-64, 2.0**127
"""Bounds of the scale: it and its inverse are float32."""


class LossScale:
    """The scale over the updates of one run. Belongs to one thread; any may read `now` and `skipped`."""

    def __init__(self) -> None:
        self._known = deque([(-1, FIRST)])
        """Scales after updates, each with the step of its update, rising."""
        self._finite_updates = 0
        """Updates without an overflow since the scale was changed."""
        self.skipped = 0
        """Count of the updates that were skipped."""

    @property
    def now(self) -> float:
        """Return the scale that follows from all updates."""
        return self._known[-1][1]

    def before(self, step: int) -> float:
        """Return the scale that follows from the updates before a step; the oldest that is known where that is not.

        Asked for rising steps.
        """
        while len(self._known) > 1 and self._known[1][0] < step:
            self._known.popleft()
        return self._known[0][1]

    def note(self, step: int, scale: float, *, overflowed: bool) -> None:
        """Count the update of a step, whose loss had this scale. Several that are under way may overflow for one reason."""
        scale_now = self.now
        if overflowed:
            self.skipped += 1
            self._finite_updates = 0
            changed = min(scale_now, max(BACKOFF * scale, LEAST))
        else:
            self._finite_updates = (self._finite_updates + 1) % GROWTH_UPDATES
            changed = scale_now if self._finite_updates else min(GROWTH * scale_now, MOST)
        if changed != scale_now:
            self._known.append((step, changed))

    def facts(self) -> dict[str, Any]:
        """Return the state between two steps, as JSON, for a checkpoint."""
        return {"scale": self.now, "finite_updates": self._finite_updates, "skipped": self.skipped}

    def go_back(self, step: int, facts: object) -> None:
        """Go on with this step from a checkpoint. Raises StorageError where that does not say the state."""
        match facts:
            case {"scale": float(scale), "finite_updates": int(finite), "skipped": int(skipped)} if is_scale(scale):
                self._known = deque([(step - 1, scale)])
                self._finite_updates, self.skipped = finite, skipped
            case _:
                raise StorageError("a checkpoint does not say the scale of the loss")


def is_scale(number: float) -> bool:
    """Tell whether a loss can have this scale: a power of 2, so that it changes no bit of a gradient."""
    return LEAST <= number <= MOST and math.frexp(number)[0] == 0.5


def check_scale(number: float) -> None:
    """Refuse what no loss is scaled by. Raises ProtocolError."""
    if not is_scale(number):
        raise ProtocolError(f"a loss is to be scaled by {number:g}; a scale is a power of 2 from {LEAST:g} to {MOST:g}")
