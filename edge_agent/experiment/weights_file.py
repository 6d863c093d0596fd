"""Files of weights: safetensors, what torch.save writes, and shards with an index. Knows nothing of the model that they fit.

They are the user's own, yet often from elsewhere: none of their code runs, and what they claim is held against what they have.
"""

import hashlib
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from shared.errors import ConfigError

_INDEX = ".index.json"
_NAMES = (
    "model.safetensors",
    f"model.safetensors{_INDEX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{_INDEX}",
)
"""The files that are looked for in a folder, in this order."""
_INDEX_BYTES = 64 * 1024 * 1024
_ARCHIVE = b"PK\x03\x04"
_PICKLE = b"\x80"
_POINTER = b"version https://git-lfs"
_STATES = ("state_dict", "model_state_dict", "model")
"""The entries of a checkpoint under which its state dict may be."""
_UNKNOWN = re.compile(
    r"GLOBAL (\S+)|type (\S+) (?:that )?was not|Trying to \w+ (?:unsupported|the) (?:GLOBAL|class) (\S+)"
)
_WRITE_ONCE = 'torch.save(torch.load(path, weights_only=False)["state_dict"], new_path)'


@dataclass(frozen=True)
class Weights:
    """The tensors of a file, or of all shards of one."""

    tensors: Mapping[str, Tensor]
    """By name; where that is possible, over the file itself, so that a tensor takes memory when it is read."""
    digest: str
    """Digest of all bytes."""
    entry: str = ""
    """Entry of a checkpoint that they are; empty where the file is the state dict itself, or has shards."""
    others: tuple[str, ...] = ()
    """Entries beside it that are tensors by name, too."""


def read_weights(path: Path, key: str | None = None) -> Weights:
    """Read a file of weights, an index of shards, or the folder that has either.

    key: entry of a checkpoint of torch.save; None for the whole file, or else for the first of the usual entries. Raises
    ConfigError for anything else, whose sentence begins with the path.
    """
    try:
        if path.is_dir():
            path = _in_folder(path)
        return (_read_shards if path.name.endswith(_INDEX) else _read)(path, key)
    except OSError as cause:
        raise ConfigError(f"{cause.filename or path} cannot be read: {cause.strerror or cause}") from cause


def _in_folder(folder: Path) -> Path:
    there = [folder / name for name in _NAMES if (folder / name).exists()]
    if not there:
        raise ConfigError(f"{folder} has none of {', '.join(_NAMES[:-1])} and {_NAMES[-1]}")
    return there[0]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _read_shards(index: Path, key: str | None) -> Weights:
    with index.open("rb") as file:
        text = file.read(_INDEX_BYTES + 1)
    try:
        shards = json.loads(text)["weight_map"] if len(text) <= _INDEX_BYTES else None
    except (ValueError, RecursionError, TypeError, KeyError):
        shards = None
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise ConfigError(
            f"{index} is no index of shards: a JSON object whose weight_map says in which file each tensor is"
        )
    digest, read = xxhash.xxh3_128(text), dict[str, Weights]()
    for shard in sorted(set(shards.values())):
        if Path(shard).name != shard:
            raise ConfigError(f"{index} names the shard {shard[:80]!r}, which is no file beside it")
        read[shard] = _read(index.with_name(shard), key)
        digest.update(bytes.fromhex(read[shard].digest))
    for name, shard in shards.items():
        if name not in read[shard].tensors:
            raise ConfigError(f"{index} says that {name[:80]!r} is in {shard}, where it is not")
    return Weights({name: read[shard].tensors[name] for name, shard in shards.items()}, digest.hexdigest())


def _read(path: Path, key: str | None) -> Weights:
    with path.open("rb") as file:
        begin = file.read(len(_POINTER))
    if begin == _POINTER:
        raise ConfigError(f"{path} is a pointer of Git LFS; `git lfs pull` fetches the weights")
    # The length of the head of a safetensors file can look like the others' beginnings, so its brace is asked first.
    if begin[8:9] != b"{" and begin.startswith((_ARCHIVE, _PICKLE)):
        return _state_dict(path, _saved_by_torch(path, is_archive=begin.startswith(_ARCHIVE)), key)
    if key is not None:
        raise ConfigError(f"{path} has no entry {key!r}, as a checkpoint of torch.save has; leave key out")
    try:
        return Weights(safetensors.torch.load_file(path), _digest(path))
    except (safetensors.SafetensorError, ValueError, KeyError) as cause:
        raise ConfigError(
            f"{path} is neither a safetensors file nor one of torch.save: {_first_line(cause)}"
        ) from cause


def _saved_by_torch(path: Path, *, is_archive: bool) -> Any:
    """Return what torch.save has written, of which no code is run and no number read yet."""
    try:
        if is_archive:
            _check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError as cause:
        if found := _UNKNOWN.search(str(cause)):
            name = next(filter(None, found.groups()))
            raise ConfigError(
                f"{path} has a pickled {name[:80]}, which could run code as it is read; if you trust it, convert it once by "
                f"{_WRITE_ONCE}, or with .state_dict() if it is a whole module"
            ) from cause
        raise _torn(path, cause) from cause
    except OSError:
        raise
    except Exception as cause:  # torch's reader meets a damaged file with errors of every kind
        raise _torn(path, cause) from cause


def _check_archive(path: Path) -> None:
    """Refuse an archive that is longer when it is unpacked. Raises ValueError or zipfile's errors."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("it is compressed, which torch.save does not do")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError("its parts are longer than the file")


def _state_dict(path: Path, saved: Any, key: str | None) -> Weights:
    """Return the state dict that was saved, or that of a checkpoint. key: see `read_weights`."""
    entries, others = list[str](), tuple[str, ...]()
    if key is not None:
        if not isinstance(saved, Mapping) or key not in saved:
            raise ConfigError(f"{path} has no entry {key!r}{_keys_of(saved)}")
        saved, entries = saved[key], [key]
    if isinstance(saved, Mapping) and not any(isinstance(value, Tensor) for value in saved.values()):
        inside = [name for name in _STATES if isinstance(saved.get(name), Mapping)]
        if inside:
            others = tuple(str(name) for name, value in saved.items() if name != inside[0] and _has_tensors(value))
            saved, entries = saved[inside[0]], [*entries, inside[0]]
        elif saved:
            raise ConfigError(
                f"{path} has no state dict{_keys_of(saved)}, and none of {', '.join(_STATES)}; save a state dict alone, "
                "or name its entry in training.start_from.key"
            )
    place = ".".join(entries)
    if not isinstance(saved, Mapping):
        raise ConfigError(f"{path} has no state dict: it holds a {type(saved).__name__}")
    if not saved:
        raise ConfigError(f"{path} has no state dict: it is empty")
    for name, value in saved.items():
        if problem := _unfit(name, value, f"{place}." if place else ""):
            raise ConfigError(f"{path} has no state dict of ordinary tensors: {problem}")
    return Weights({name: value.detach() for name, value in saved.items()}, _digest(path), place, others)


def _keys_of(saved: Any) -> str:
    names = list(saved) if isinstance(saved, Mapping) else []
    return f": its keys are {' and '.join(repr(name)[:80] for name in names[:3])}" if names else ""


def _has_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(each, Tensor) for each in value.values())


def _unfit(name: Any, value: Any, place: str) -> str:
    if not isinstance(name, str):
        return "a name is no text"
    shown = repr(f"{place}{name[:80]}")
    if not isinstance(value, Tensor):
        return f"{shown} is a {type(value).__name__}"
    if value.layout != torch.strided:
        return f"{shown} is sparse"
    if value.is_quantized:
        return f"{shown} is quantized"
    return "" if value.device.type == "cpu" else f"{shown} is on the device {value.device.type}"


def _torn(path: Path, cause: Exception) -> ConfigError:
    return ConfigError(f"{path} cannot be read as a file of torch.save: {_first_line(cause) or type(cause).__name__}")


def _first_line(cause: Exception) -> str:
    return str(cause).partition("\n")[0].partition(". ")[0][:200]
