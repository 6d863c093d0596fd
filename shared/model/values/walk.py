"""The tensors of one pass through blocks, watched: which are handed on as they are, and which are written to."""

from torch import Tensor

from shared.model.features import Features


class Walk:
    """One pass through blocks, told block by block."""

    def __init__(self, inputs: Features) -> None:
        self.passed: list[tuple[int | None, ...]] = []
        """See `Observed.passed`."""
        self._entered = inputs
        self._versions = _versions(inputs)
        self._modifies: list[set[int]] = []
        self._hands_on: list[list[set[int]]] = []

    def step(self, outputs: Features) -> None:
        """The next block has taken what the last has returned, and has returned `outputs`."""
        entered = self._entered
        changed = {slot for slot, now in enumerate(_versions(entered)) if now != self._versions[slot]}
        self.passed.append(tuple(_place_of(output, entered, changed) for output in outputs))
        self._modifies.append(changed)
        self._hands_on.append(
            [{slot for slot, tensor in enumerate(entered) if _storage(tensor) == _storage(one)} for one in outputs]
        )
        self._entered, self._versions = outputs, _versions(outputs)

    def modified(self) -> tuple[bool, ...]:
        """Tell of each block whether it, or a block behind it, writes to anything that it is given."""
        modifies = [set(slots) for slots in self._modifies]
        for index in reversed(range(len(modifies) - 1)):
            for slot in modifies[index + 1]:
                modifies[index] |= self._hands_on[index][slot]
        return tuple(map(bool, modifies))


def _versions(features: Features) -> list[int]:
    return [tensor._version for tensor in features]


def _place_of(tensor: Tensor, among: Features, changed: set[int]) -> int | None:
    return next((slot for slot, each in enumerate(among) if each is tensor and slot not in changed), None)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
