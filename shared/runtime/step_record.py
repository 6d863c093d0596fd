"""The arrivals for each step under way, kept until the step is done and in the log of steps."""

from collections import defaultdict
from collections.abc import Iterable

from torch import Tensor

from shared.execution.step_in_flight import Parcel, tensors_in
from shared.training.block_state import element_bytes
from shared.training.step_log import StepLog


class StepRecord:
    """The record of one worker under one placement. Used by one thread at a time."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self._noted: dict[int, dict[str, list[memoryview]]] = defaultdict(dict)

    def note(self, step: int, what: str, tensors: Iterable[Tensor | None]) -> None:
        """These tensors have come for a step."""
        self._noted[step][what] = [element_bytes(tensor) for tensor in tensors if tensor is not None]

    def note_load(self, parcel: Parcel) -> None:
        """Record the same for a load of another worker."""
        self.note(parcel.step, str(parcel.crossing), tensors_in(parcel.load))

    def write(self, step: int) -> None:
        """The step is done. Raises StorageError when the log cannot be written."""
        noted = self._noted.pop(step, {})
        self._log.applied(step, *(part for _, parts in sorted(noted.items()) for part in parts))

    def pass_over(self, first: int, stop: int) -> None:
        """The others have done steps [first, stop), without this worker. Raises StorageError when the log cannot be written."""
        self._log.passed_over(first, stop)
