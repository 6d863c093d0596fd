"""The blocks that a module declares: those of its method blocks(), or the children of an nn.Sequential."""

import inspect
from collections.abc import Sequence

from torch import nn

from shared.errors import ModelError
from shared.model.inputs import by_place


def declared_blocks(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Return the blocks that the module itself declares, with their names; None when it declares none."""
    if inspect.isfunction(method := getattr(type(module), "blocks", None)):
        blocks = method(module)
        if not isinstance(blocks, list | tuple) or not all(isinstance(block, nn.Module) for block in blocks):
            raise ModelError(f"{type(module).__name__}.blocks() must return a list of modules")
        return list(zip(_names(module, blocks), blocks, strict=True))
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module) > 1:
        children = list(module._modules.items())
        # Were its parameterless beginning (a Flatten, say) a block, its output would be the raw input.
        first = next((place for place, child in enumerate(module) if any(True for _ in child.parameters())), 0)
        head = nn.Sequential(*list(module)[: first + 1]) if first else module[0]
        return [
            (children[first][0], head),
            *((name, child) for name, child in children[first + 1 :] if child is not None),
        ]
    return None


def _names(module: nn.Module, blocks: Sequence[nn.Module]) -> list[str]:
    """The name of each block: its qualified name, or that of the first submodule with parameters, or its place."""
    qualified = {part: name for name, part in module.named_modules()}
    names: list[str] = []
    for index, block in enumerate(blocks):
        with_parameters = (part for part in block.modules() if any(True for _ in part.parameters()))
        candidates = (qualified[part] for part in (block, *with_parameters) if part in qualified)
        name = next(candidates, "")
        names.append(name if name and name not in names else f"blocks.{index}")
    return names


def declared_by_place(module: nn.Module, names: tuple[str, ...]) -> list[tuple[str, nn.Module]] | None:
    """The blocks that the module declares, of which the first takes the inputs by their places."""
    if (declared := declared_blocks(module)) is None:
        return None
    (first, block), *others = declared
    return [(first, by_place(block, names)), *others]
