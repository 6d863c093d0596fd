"""Assignment of each parameter and buffer to its block, by the whole module's names.

Every entry of the module's state dict belongs to exactly one block, or the module is refused. A parameter that several blocks
use belongs to the first of them; the others are tied to it. Knows nothing of values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from shared.errors import ModelError


@dataclass(frozen=True)
class StateEntry:
    """The place of one parameter or buffer in a module. The value there may be replaced, as by a move to another device."""

    name: str
    """Qualified name in the whole module."""
    owner: nn.Module
    attribute: str

    @property
    def is_parameter(self) -> bool:
        return self.attribute in self.owner._parameters

    @property
    def is_persistent(self) -> bool:
        """Tell whether the state dict holds the entry."""
        return self.attribute not in self.owner._non_persistent_buffers_set

    @property
    def value(self) -> Tensor:
        value = (self.owner._parameters if self.is_parameter else self.owner._buffers)[self.attribute]
        assert value is not None, self.name
        return value


@dataclass(frozen=True)
class TiedEntry:
    """A parameter that a block uses and an earlier block has."""

    keeper: int
    """Index of the block that has it."""
    entry: StateEntry


@dataclass(frozen=True)
class BlockState:
    """The parameters and buffers of one block."""

    entries: tuple[StateEntry, ...]
    tied: tuple[TiedEntry, ...]


def assign_state(module: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> list[BlockState]:
    """The entries of each of the named blocks, in the order of the module's own.

    A parameter with two names (tied weights) has two entries, in one block. Raises ModelError when a buffer is in two
    blocks, or something in none, or not the module's.
    """
    entries = list(_entries(module))
    title = type(module).__name__
    kept_otherwise = sorted(module.state_dict().keys() ^ {entry.name for entry in entries if entry.is_persistent})
    if kept_otherwise:
        raise ModelError(
            f"{title} has {kept_otherwise[0]!r} in its state dict by other means than a parameter or a buffer, so it cannot "
            "move with a block; make it a buffer"
        )
    _refuse_foreign(title, {id(entry.value) for entry in entries}, blocks)
    holders: dict[int, list[int]] = {}
    for index, (_, block) in enumerate(blocks):
        for tensor in (*block.parameters(), *block.buffers()):
            holders.setdefault(id(tensor), []).append(index)
    assigned: list[list[StateEntry]] = [[] for _ in blocks]
    tied: list[dict[int, TiedEntry]] = [{} for _ in blocks]
    for entry in entries:
        found = holders.get(id(entry.value), [])
        if len(found) > 1 and not entry.is_parameter:
            first, second = (blocks[index][0] for index in found[:2])
            raise ModelError(
                f"buffer {entry.name!r} of {title} is used by block {first!r} and by block {second!r}; each needs its own, or "
                "the two must be one block"
            )
        if found:
            assigned[found[0]].append(entry)
            for index in found[1:]:
                tied[index].setdefault(id(entry.value), TiedEntry(found[0], entry))
        elif entry.is_persistent and (
            not entry.is_parameter or entry.value.requires_grad
        ):  # what is frozen stays in the module as it is
            kind = "parameter" if entry.is_parameter else "buffer"
            raise ModelError(f"{kind} {entry.name!r} of {title} is used by no block; remove it, or the layer it is of")
    return [BlockState(tuple(own), tuple(others.values())) for own, others in zip(assigned, tied, strict=True)]


def _entries(module: nn.Module) -> Iterator[StateEntry]:
    for path, owner in module.named_modules(remove_duplicate=False):
        for entries in (owner._parameters, owner._buffers):
            for attribute, value in entries.items():
                if value is not None:
                    yield StateEntry(f"{path}.{attribute}" if path else attribute, owner, attribute)


def _refuse_foreign(title: str, own: set[int], blocks: Sequence[tuple[str, nn.Module]]) -> None:
    for name, block in blocks:
        for key, tensor in block.state_dict(keep_vars=True).items():
            if id(tensor) not in own:
                raise ModelError(
                    f"block {name!r} of {title} holds {key!r}, which is not one of {title}'s own parameters and buffers; "
                    "build blocks of submodules that are attributes of the module"
                )
