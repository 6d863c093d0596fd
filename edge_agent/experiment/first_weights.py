"""First weights of a model from a file (`training.start_from`): what fits is taken, what may not differ is refused."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from edge_agent.experiment.weights_file import read_weights
from edge_agent.training_config import StartFromConfig
from shared.errors import ConfigError, ModelError
from shared.model.learning import ParameterNames
from shared.model.snapshot import same_bits

START_FROM = "training.start_from"
"""Key of a run that names the file."""
_NAMED = 3
"""Names that a sentence lists before it counts the others."""
_LOGGED = 20
"""As many as a log lists."""
_NAME_CHARACTERS = 80
_COMPILED = "_orig_mod"
"""The child in which `torch.compile` has the module."""
_COUNT = "num_batches_tracked"
"""A buffer that files of before torch 0.4.1 lack. As torch's own loading has it, it counts from zero then."""
_NARROW = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class FirstWeights:
    """The first weights of a model, by the names of tensors."""

    path: Path
    digest: str
    """Digest of the file."""
    loaded: tuple[str, ...]
    """Taken from the file."""
    drawn: tuple[str, ...]
    """As the seed has them, because the file lacks them or has others."""
    unused: tuple[str, ...]
    """In the file alone, or with another shape or type than the model's."""
    entry: str
    """Entry of a checkpoint that was taken; empty where the file has none."""
    not_taken: tuple[str, ...]
    """Entries that could have been, too."""

    def described(self) -> dict[str, str]:
        """Return the lists as text, for a log or a person."""
        lists = {"from_file": self.loaded, "from_seed": self.drawn, "unused": self.unused}
        lists |= {"entry": (self.entry,), "not_taken": self.not_taken} if self.not_taken else {}
        return {key: _listed(names, _LOGGED) if names else "none" for key, names in lists.items()}


def load_weights(module: nn.Module, start: StartFromConfig, named_by: str = START_FROM) -> FirstWeights:
    """Put the weights of a file into `module`, in place.

    The file has every tensor of the module's state dict, with its shape and type, but for those that `start.allow` names. One
    that has several names, as tied weights have, may stand under one of them. Buffers that the state dict leaves out may be
    there, too. Names count without the prefix of torch.compile, and without the one that the model's have in the file, as of
    torch's parallel models or of a module of Lightning; what lacks that one, as a metric, is unused. Raises ConfigError, and
    changes nothing, for any other file, and for one of which nothing would be taken. named_by: the key or option that names
    it, with which the error begins.
    """
    try:
        weights = read_weights(start.path, start.key)
    except ConfigError as cause:
        raise ConfigError(f"{named_by}: {cause}") from cause
    targets = _compiled_off(
        (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    )
    try:
        named = _compiled_off(weights.tensors.items())
        prefix = _prefix(named, targets)
        given = {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
        besides = [name for name in named if not name.startswith(prefix)]
        may_differ = _differing(start.allow, {*given, *besides, *targets})
        fitting = {
            name: value for name, value in given.items() if name in targets and _fits(value, targets[name], start)
        }
        there = {id(targets[name]) for name in fitting}
        expected = [name for name in _names(module) if name in targets]
        absent = {id(targets[name]): name for name in reversed(expected) if id(targets[name]) not in there}
        drawn = [name for name in absent.values() if not name.endswith(_COUNT)][::-1]
        unused = sorted(given.keys() - fitting.keys())
        _check_misfits(
            [name for name in drawn if name not in may_differ],
            [name for name in unused if name not in may_differ],
            given,
            targets,
            may_widen=named_by == START_FROM and not start.widen,
        )
        if drawn and not fitting:
            raise _MisfitError(
                "nothing of it would be taken, because no tensor has the name, shape and type of one of the model: it holds "
                f"{_listed(unused) if unused else 'nothing'}, and the model has {_listed(drawn)}"
            )
        _check_contradictions(fitting, targets)
    except _MisfitError as misfit:
        raise ConfigError(f"{named_by}: {start.path} does not fit the model: {misfit}") from None
    with torch.no_grad():
        for name, value in fitting.items():
            targets[name].copy_(value)
    return FirstWeights(
        start.path,
        weights.digest,
        tuple(fitting),
        tuple(drawn),
        tuple(sorted([*unused, *besides])),
        weights.entry,
        weights.others,
    )


class _MisfitError(Exception):
    """A file that does not fit a model; its text is part of a sentence."""


def _names(module: nn.Module) -> list[str]:
    """The names of a state dict, without the prefix of torch.compile."""
    return list(_compiled_off((name, value) for name, value in module.state_dict().items()))


def _compiled_off(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return tensors by their names without the prefix of torch.compile, wherever it stands."""
    found, named = dict[str, Tensor](), dict[str, str]()
    for name, tensor in tensors:
        plain = ".".join(part for part in name.split(".") if part != _COMPILED)
        if plain in found:
            raise _MisfitError(
                f"{' and '.join(map(repr, sorted((name, named[plain]))))} are one name without the prefix `{_COMPILED}.`"
            )
        found[plain], named[plain] = tensor, name
    return found


def _prefix(named: Iterable[str], targets: Mapping[str, Tensor]) -> str:
    """Return what stands before the model's names in a file: of all prefixes the one with the most of them, the shortest of
    such. It is empty where a name is the model's as it is, or none is with any prefix."""
    names = list(named)
    if not targets.keys().isdisjoint(names):
        return ""
    starts = ((name, place + 1) for name in names for place, character in enumerate(name) if character == ".")
    found = Counter(name[:start] for name, start in starts if name[start:] in targets)
    most = max(found.values(), default=0)
    shortest, *others = sorted((one for one, count in found.items() if count == most), key=len) or [""]
    if apart := [one for one in others if not one.startswith(shortest)]:
        raise _MisfitError(
            f"names of the model follow both {shortest!r} and {apart[0]!r} in it, so either could be meant; let it have one"
        )
    return shortest


def _differing(allowed: Sequence[str], names: Iterable[str]) -> set[str]:
    """Return the names that may differ. Raises ConfigError for one that is allowed and nowhere."""
    try:
        chosen = ParameterNames(f"{START_FROM}.allow", allowed)
        return chosen.chosen(names, "neither the file nor the model has a tensor")
    except ModelError as cause:
        raise ConfigError(str(cause)) from cause


def _fits(given: Tensor, target: Tensor, start: StartFromConfig) -> bool:
    if given.shape != target.shape:
        return False
    return given.dtype == target.dtype or (start.widen and _is_narrower(given, target))


def _is_narrower(given: Tensor, target: Tensor) -> bool:
    """Tell whether the type of a tensor holds each value of another one's."""
    both = given.dtype in _NARROW and target.is_floating_point()
    return both and given.dtype != target.dtype and torch.promote_types(given.dtype, target.dtype) == target.dtype


def _check_misfits(
    lacking: Sequence[str],
    unused: Sequence[str],
    given: Mapping[str, Tensor],
    targets: Mapping[str, Tensor],
    *,
    may_widen: bool,
) -> None:
    """Refuse what is missing, what is not the model's, and other shapes or types, in this order.

    may_widen: whether the user could have other types taken.
    """
    foreign = [name for name in unused if name not in targets]
    unlike = [name for name in targets if name in set(unused)]
    missing = [name for name in lacking if name not in given]
    told = [f"lacks {_listed(missing)}"] if missing else []
    told += [f"holds {_listed(foreign)}, which the model does not have"] if foreign else []
    if told:
        raise _MisfitError(f"it {', and '.join(told)}; its tensors must have the names of the model's state dict")
    if unlike:
        name, *others = unlike
        too = f"; the shapes or types of {_listed(others)} differ, too" if others else ""
        widening = may_widen and any(_is_narrower(given[each], targets[each]) for each in unlike)
        how = f"; {START_FROM}.widen = true takes types of fewer bits, whose values stay the same" if widening else ""
        raise _MisfitError(f"{name!r} is {_form(given[name])} and must be {_form(targets[name])}{too}{how}")


def _check_contradictions(fitting: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Refuse two names of one tensor that have different values."""
    first: dict[int, str] = {}
    for name in (name for name in targets if name in fitting):
        other = first.setdefault(id(targets[name]), name)
        if not same_bits(fitting[name], fitting[other]):
            raise _MisfitError(
                f"it holds different values for {other!r} and {name!r}, which are one tensor of the model"
            )


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _listed(names: Sequence[str], most: int = _NAMED) -> str:
    """The first names, and how many follow, as part of a sentence."""
    shown = [name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 1]}…" for name in names[:most]]
    parts = [*map(repr, shown), *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join((*([", ".join(parts[:-1])] if parts[:-1] else []), parts[-1]))
