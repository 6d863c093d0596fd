"""The state of one block as data: all that training changes in it, by qualified name, as one safetensors file.

These are the parameters that learn, with the state of their optimizer, and the buffers. Buffers that a state dict leaves
out belong to it, because training may change them like any other. A migration sends this state, and a checkpoint holds it
for every block (`held_state`). Frozen parameters are no part of it: workers compare them once, and have them from then on
(`frozen_digest`). This module does not know where the state goes.
"""

from collections.abc import Mapping, Sequence

import torch
import xxhash
from torch import Tensor

from shared.errors import ModelError, ProtocolError
from shared.model.chain import Block
from shared.registry import OptimizerConfig
from shared.training import state_file
from shared.training.averages import Averages
from shared.training.optimizers import build_optimizer, optimizer_bytes, state_layout
from shared.training.slices import Slice

BlockTensors = dict[str, Tensor]


def collect(block: Block, optimizer: torch.optim.Optimizer | None, averages: Averages | None = None) -> BlockTensors:
    """Name the tensors of a block: `parameter/NAME`, `buffer/NAME`, `transient/NAME`, `optimizer/NAME/KEY`, `average/NAME`.
    Nothing is copied.

    Most optimizers have no state before their first step; then there are no `optimizer/` entries. averages: of the weights.
    """
    parameters = block.named_parameters()
    tensors = {name: tensor.detach() for name, tensor in _targets(block).items()}
    if optimizer is not None:
        for name, parameter in parameters.items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):  # SGD without momentum keeps a None
                    tensors[f"optimizer/{name}/{key}"] = value
    there = averages or {}
    return tensors | {f"average/{name}": there[one] for name, one in parameters.items() if one in there}


def without_optimizer(tensors: Mapping[str, Tensor]) -> BlockTensors:
    """Return the state of a block for a worker that runs it without updating it."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(("optimizer/", "average/"))}


def averages_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the averages in the state of a block, by the names of their parameters."""
    return {name.removeprefix("average/"): value for name, value in tensors.items() if name.startswith("average/")}


def restore(
    block: Block,
    optimizer: torch.optim.Optimizer | None,
    config: OptimizerConfig | None,
    tensors: Mapping[str, Tensor],
    averages: Averages | None = None,
) -> None:
    """Write a block's state in place, so that every reference to its parameters stays good.

    optimizer: the block's own, if it has one here. A parameter that comes without optimizer state begins with that of a new
    optimizer. averages: of its weights, which go by what comes; None where none are kept. Raises ProtocolError, and changes
    nothing, when the state does not fit; see `check`.
    """
    arriving = check(block, config, tensors, averaged=averages is not None)
    _copy_to(_targets(block), tensors)
    if averages is not None:
        there = averages_in(tensors)
        for name, parameter in block.named_parameters().items():
            averages.pop(parameter, None)
            if name in there:
                averages[parameter] = there[name].to(parameter.device, copy=True)
    if optimizer is None or config is None:
        return
    for name, parameter in block.named_parameters().items():
        if not parameter.requires_grad:
            continue
        if name in arriving:
            layout = state_layout(parameter, config)
            optimizer.state[parameter] = {
                key: tensor.clone() if layout[key].on_host else tensor.to(parameter.device, copy=True)
                for key, tensor in arriving[name].items()
            }
        else:  # some optimizers, as Adagrad, have a state before their first step and cannot do without
            optimizer.state[parameter] = build_optimizer({name: parameter}, config).state[parameter]


def put_weights(block: Block, one: Slice, tensors: Mapping[str, Tensor]) -> None:
    """Write the parameters of a slice, and the buffers that go with it, in place.

    Raises ProtocolError, and changes nothing, when they do not fit.
    """
    buffers = {name: value for name, value in _targets(block).items() if one.has_buffers and not _is_parameter(name)}
    parameters = block.named_parameters()
    ranges = {f"parameter/{each.name}": (each, parameters[each.name].detach()) for each in one.ranges}
    _check_form(block, buffers | {name: each.of(value) for name, (each, value) in ranges.items()}, tensors)
    _copy_to(buffers, tensors)
    for name, (each, value) in ranges.items():
        each.put(value, tensors[name])


def _is_parameter(name: str) -> bool:
    return name.startswith("parameter/")


def check(
    block: Block, config: OptimizerConfig | None, tensors: Mapping[str, Tensor], *, averaged: bool = False
) -> dict[str, dict[str, Tensor]]:
    """Refuse a state that is not this block's; returns the optimizer's part of it, by parameter and key.

    config: of the optimizer whose state may be there; None where none may. averaged: True where averages may be there.
    Raises ProtocolError unless exactly what training changes is there with its own shapes and types, and optimizer state
    for the parameters that learn only: of each, the whole with its own shapes and types, or nothing.
    """
    _check_form(block, _targets(block), without_optimizer(tensors))
    there, learning = averages_in(tensors), _learning(block) if averaged else {}
    _check_form(block, {name: value for name, value in learning.items() if name in there}, there)
    return _arriving_optimizer_state(block, config, tensors)


def is_static(block: Block) -> bool:
    """Tell whether training never changes the block, so that both sides hold it equal from the beginning to the end."""
    return not _targets(block)


def frozen(block: Block) -> BlockTensors:
    """Name the parameters of a block that do not learn: `frozen/NAME`. Nothing is copied."""
    return {
        f"frozen/{name}": value.detach() for name, value in block.named_parameters().items() if not value.requires_grad
    }


def changed_while_frozen(block: Block) -> ModelError:
    """Return the refusal of a block that training has changed in its frozen parameters."""
    names = [name.removeprefix("frozen/") for name in frozen(block)]
    listed = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return ModelError(
        f"block {block.name!r} has changed parameters of its own that do not learn ({listed}): these move with no block and "
        "are in no checkpoint, so the result would depend on the placement; register what a forward changes, as the weights of "
        "a teacher, as buffers, and let no train() or eval() merge adapters"
    )


def switched(block: Block, names: Sequence[str]) -> ModelError:
    """Return the refusal of a block that has changed which of its parameters learn."""
    listed = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return ModelError(
        f"block {block.name!r} has switched requires_grad of {listed} while it trained; what learns is known from the first "
        "step on, so that it can move: train in several runs, each from the last one's weights (training.start_from), with "
        "another model.frozen"
    )


def put_frozen(block: Block, tensors: Mapping[str, Tensor]) -> None:
    """Write the parameters that do not learn, in place. Raises ProtocolError, and changes nothing, when they do not fit."""
    targets = frozen(block)
    _check_form(block, targets, tensors)
    _copy_to(targets, tensors)


def from_file(
    block: Block, config: OptimizerConfig | None, data: bytes | memoryview, *, averaged: bool = False
) -> BlockTensors:
    """Read the state of a block, or its frozen parameters, from a file, over whose memory the tensors lie.

    config, averaged: as in `check`. Raises ProtocolError for anything else than a safetensors file, or for one with more in
    its head than this block has; the tensors are as they come.
    """
    return state_file.deserialize(data, _head_bytes(block, config, averaged=averaged))


def max_serialized_bytes(block: Block, config: OptimizerConfig, *, averaged: bool = False) -> int:
    """Return the largest size of this block's state as a file, which a receiver allows before it has seen the file.

    Its tensors are counted exactly, those of the optimizer as its spec has them; names are given room.
    """
    tensors = sum(tensor.nbytes for tensor in _targets(block).values())
    tensors += sum(tensor.nbytes for tensor in _learning(block).values()) if averaged else 0
    optimizer = optimizer_bytes(block.named_parameters().values(), config)
    return tensors + optimizer + _head_bytes(block, config, averaged=averaged)


def max_frozen_bytes(block: Block) -> int:
    """Return the largest size of the block's frozen parameters as a file."""
    return sum(tensor.nbytes for tensor in frozen(block).values()) + _head_bytes(block, None)


def _head_bytes(block: Block, config: OptimizerConfig | None, *, averaged: bool = False) -> int:
    """Return more than the head of a file takes that has a block's state, or its frozen parameters."""
    entries = len(_targets(block)) + len(frozen(block)) + 8 + (len(_learning(block)) if averaged else 0)
    if config is not None:
        entries += sum(len(state_layout(parameter, config)) for parameter in block.named_parameters().values())
    return state_file.ENTRY_BYTES * entries


def digest(block: Block) -> int:
    """XXH3-64 of what training changes in a block: equal on both sides when they start from the same weights."""
    return _digest(collect(block, None))


def frozen_digest(block: Block) -> int:
    """XXH3-64 of the frozen parameters of a block."""
    return _digest(frozen(block))


def _digest(tensors: BlockTensors) -> int:
    state = xxhash.xxh3_64()
    for name, tensor in sorted(tensors.items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        state.update(element_bytes(tensor))
    return state.intdigest()


def element_bytes(tensor: Tensor) -> memoryview:
    """The elements of a tensor in their order, as they lie in memory."""
    data: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data


def _check_form(block: Block, targets: BlockTensors, given: Mapping[str, Tensor]) -> None:
    """Refuse tensors that have not exactly the names, shapes and types of the targets. Raises ProtocolError."""
    if given.keys() != targets.keys():
        odd = sorted(given.keys() ^ targets.keys())[0]
        raise ProtocolError(
            f"state of block {block.name!r}: {odd[:120]!r} is {'unknown' if odd in given else 'missing'}"
        )
    for name, target in targets.items():
        if given[name].shape != target.shape or given[name].dtype != target.dtype:
            raise ProtocolError(
                f"state of block {block.name!r}: {name!r} is {given[name].dtype} {tuple(given[name].shape)}; "
                f"it must be {target.dtype} {tuple(target.shape)}"
            )


def _copy_to(targets: BlockTensors, tensors: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])


def _learning(block: Block) -> BlockTensors:
    return {name: value for name, value in block.named_parameters().items() if value.requires_grad}


def _targets(block: Block) -> BlockTensors:
    """Name all that training changes in a block besides the state of an optimizer."""
    targets: BlockTensors = {f"parameter/{name}": value for name, value in _learning(block).items()}
    targets |= {f"buffer/{name}": value for name, value in block.named_buffers().items()}
    return targets | {f"transient/{name}": value for name, value in block.named_transients().items()}


def _arriving_optimizer_state(
    block: Block, config: OptimizerConfig | None, tensors: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    parameters = block.named_parameters()
    arriving: dict[str, dict[str, Tensor]] = {}
    for entry, tensor in tensors.items():
        if entry.startswith("optimizer/"):
            name, _, key = entry.removeprefix("optimizer/").rpartition("/")
            arriving.setdefault(name, {})[key] = tensor
    for name, entries in arriving.items():
        where = f"state of block {block.name!r}: the optimizer state of {name[:120]!r}"
        expected = state_layout(parameters[name], config) if config is not None and name in parameters else {}
        if not expected:
            raise ProtocolError(f"{where} fits no parameter of it that has one")
        if entries.keys() != expected.keys():
            raise ProtocolError(f"{where} has {sorted(entries)}; it must have {sorted(expected)}")
        for key, tensor in entries.items():
            if (tuple(tensor.shape), tensor.dtype) != (expected[key].shape, expected[key].dtype):
                raise ProtocolError(
                    f"{where} has a {key!r} of {tensor.dtype} {tuple(tensor.shape)}; it must be {expected[key].dtype} "
                    f"{expected[key].shape}"
                )
    return arriving
