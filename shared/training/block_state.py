"""The state of a block as data: parameters, buffers and optimizer state, by qualified name, as one safetensors file.

Buffers that a state dict leaves out belong to it, because training may change them like any other.
What migrates and what a checkpoint holds. Knows nothing of where it goes.
"""

from collections.abc import Mapping

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from shared.errors import ProtocolError
from shared.model.chain import Block

BlockTensors = dict[str, Tensor]
_STEP = "step"
"""What torch's optimizers call the count of their updates."""


def collect(block: Block, optimizer: torch.optim.Optimizer | None) -> BlockTensors:
    """Name the tensors of a block: `parameter/NAME`, `buffer/NAME`, `transient/NAME`, `optimizer/NAME/KEY`. Nothing is copied.

    An optimizer that has not stepped yet has no state; then there are no `optimizer/` entries.
    """
    parameters = block.named_parameters()
    tensors = {name: tensor.detach() for name, tensor in _targets(block).items()}
    if optimizer is not None:
        for name, parameter in parameters.items():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):  # SGD without momentum keeps a None
                    tensors[f"optimizer/{name}/{key}"] = value
    return tensors


def restore(
    block: Block,
    optimizer: torch.optim.Optimizer | None,
    optimizer_keys: frozenset[str],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write a block's state in place, so that every reference to its parameters stays good.

    Raises ProtocolError, and changes nothing, when it does not fit; see `check`.
    """
    optimizer_state = check(block, optimizer_keys, tensors)
    with torch.no_grad():
        for name, target in _targets(block).items():
            target.copy_(tensors[name])
    if optimizer is not None:
        for name, parameter in block.named_parameters().items():
            optimizer.state.pop(parameter, None)
            if name in optimizer_state:
                optimizer.state[parameter] = {
                    # A step counter stays on the host, as torch.optim keeps it; moments lie beside their parameter.
                    key: tensor.clone() if key == _STEP else tensor.to(parameter.device, copy=True)
                    for key, tensor in optimizer_state[name].items()
                }


def check(block: Block, optimizer_keys: frozenset[str], tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Refuse a state that is not this block's; returns the optimizer's part of it, by parameter and key.

    optimizer_keys: what the optimizer keeps for a parameter that it has updated (`shared.training.optimizer.state_keys`).
    Raises ProtocolError unless exactly the block's parameters and buffers are there with their own shapes and types, and
    optimizer state for its parameters only, whole or not at all.
    """
    targets = _targets(block)
    given = {name for name in tensors if not name.startswith("optimizer/")}
    if given != targets.keys():
        odd = sorted(given ^ targets.keys())[0]
        raise ProtocolError(
            f"state of block {block.name!r}: {odd[:120]!r} is {'unknown' if odd in given else 'missing'}"
        )
    for name, target in targets.items():
        if tensors[name].shape != target.shape or tensors[name].dtype != target.dtype:
            raise ProtocolError(
                f"state of block {block.name!r}: {name!r} is {tensors[name].dtype} {tuple(tensors[name].shape)}; "
                f"it must be {target.dtype} {tuple(target.shape)}"
            )
    return _optimizer_state(block, optimizer_keys, tensors)


def is_static(block: Block) -> bool:
    """Whether training leaves the block as it was, so that both sides hold it equal once and for all."""
    return not block.trainable and not block.named_buffers() and not block.named_transients()


def serialize(tensors: BlockTensors) -> bytes:
    """The tensors as a safetensors file."""
    return safetensors.torch.save(savable(tensors))


def savable(tensors: Mapping[str, Tensor]) -> BlockTensors:
    """The tensors as safetensors takes them: on the CPU, contiguous, and no two in one memory, as tied weights are."""
    saved: BlockTensors = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        placed = tensor.detach().cpu().contiguous()
        address = placed.untyped_storage().data_ptr()
        saved[name] = placed.clone() if address in taken else placed
        taken.add(address)
    return saved


def deserialize(data: bytes) -> BlockTensors:
    """The tensors of a safetensors file. Raises ProtocolError for anything else."""
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as cause:
        raise ProtocolError(f"the state of a block is no safetensors file: {cause}") from cause


def max_serialized_bytes(block: Block) -> int:
    """More than the state of this block can take: what a receiver allows before it has seen it.

    No optimizer of ours keeps more than three tensors a parameter (AdamW: two moments and a step).
    """
    parameters = block.named_parameters().values()
    buffers = [*block.named_buffers().values(), *block.named_transients().values()]
    entries = 5 * len(parameters) + len(buffers)
    tensors = sum(4 * p.nbytes for p in parameters) + sum(b.nbytes for b in buffers)
    return tensors + 512 * entries + 4096


def digest(block: Block) -> int:
    """XXH3-64 of a block's names, parameters and buffers: equal on both sides when they start from the same weights."""
    state = xxhash.xxh3_64()
    for name, tensor in sorted(collect(block, None).items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        state.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return state.intdigest()


def _targets(block: Block) -> dict[str, Tensor]:
    targets: dict[str, Tensor] = {f"parameter/{name}": value for name, value in block.named_parameters().items()}
    targets |= {f"buffer/{name}": value for name, value in block.named_buffers().items()}
    return targets | {f"transient/{name}": value for name, value in block.named_transients().items()}


def _optimizer_state(block: Block, keys: frozenset[str], tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    parameters = block.named_parameters()
    state: dict[str, dict[str, Tensor]] = {}
    for entry, tensor in tensors.items():
        if not entry.startswith("optimizer/"):
            continue
        name, _, key = entry.removeprefix("optimizer/").rpartition("/")
        parameter = parameters.get(name)
        like_parameter = parameter is not None and (tensor.shape, tensor.dtype) == (parameter.shape, parameter.dtype)
        if parameter is None or not (like_parameter or tensor.dim() == 0):
            raise ProtocolError(f"state of block {block.name!r}: {entry[:120]!r} fits no parameter of it")
        state.setdefault(name, {})[key] = tensor
    for name, entries in state.items():
        if entries.keys() != keys:
            raise ProtocolError(
                f"state of block {block.name!r}: the optimizer state of {name!r} has {sorted(entries)}; "
                f"it must have {sorted(keys)}"
            )
    return state
