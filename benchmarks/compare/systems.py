"""The four systems: the files that a user of each writes, the commands that he types, and where the trained weights lie."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.compare.counting import lines_of
from shared.errors import IsthmusError

PROGRAMS = Path(__file__).with_name("programs")
TRAININGS = ("image-folder", "text-adapters")
SHARED_FILE = "net.py"
"""Network and data, which all four have."""
_ACCURACY = re.compile(r"accuracy ([\d.]+)")


@dataclass(frozen=True, eq=False)
class System:
    """A way to write a training."""

    name: str
    files: tuple[str, ...]
    """The user's own, beside `SHARED_FILE`, in the folder of a training."""
    servers: tuple[str, ...]
    """Commands that go on, each in a terminal of its own."""
    command: str
    """Command that trains. In all commands {0} and {1} stand for ports, and {steps} for the steps of the training."""
    saved: Callable[[Path, Sequence[str]], list[Tensor]]
    """The trained tensors in the order of these names, those of the module's state dict, of the folder of a run."""
    accuracy: Callable[[Path, str], float]
    """The accuracy at the end, of the folder of a run and of what its processes printed."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Further files of the user's, with what they hold."""

    def lines(self, training: str) -> int:
        """Count the lines of the user's own, without `SHARED_FILE`."""
        further = sum(len(text.splitlines()) for text in self.written.values())
        return sum(lines_of(PROGRAMS / training / file) for file in self.files) + further

    @property
    def commands(self) -> int:
        """Number of commands that a user types."""
        return len(self.servers) + 1


def _by_name(folder: Path, names: Sequence[str]) -> list[Tensor]:
    state = torch.load(folder / "net.pth", weights_only=True)
    return [state[name] for name in names]


def _halves(folder: Path, _names: Sequence[str]) -> list[Tensor]:
    halves = torch.load(folder / "net.pth", weights_only=True)
    return [*halves["front"].values(), *halves["back"].values()]


def _brought_home(folder: Path, names: Sequence[str]) -> list[Tensor]:
    state = load_file(folder / "run" / "model.safetensors")
    return [state[name] for name in names]


def _printed_accuracy(_folder: Path, printed: str) -> float:
    found = _ACCURACY.findall(printed)
    if not found:
        raise IsthmusError(f"a program ended without an accuracy: {printed[-3000:]}")
    return float(found[-1])


def _summarised_accuracy(folder: Path, _printed: str) -> float:
    return float(json.loads((folder / "run" / "summary.json").read_text())["accuracy"])


PLAIN = System("plain PyTorch", ("plain.py",), (), "python plain.py", _by_name, _printed_accuracy)
LIGHTNING = System("Lightning", ("with_lightning.py",), (), "python with_lightning.py", _by_name, _printed_accuracy)
FLOWER = System(
    "Flower",
    tuple(f"flower/{name}" for name in ("pyproject.toml", "halves.py", "client_app.py", "server_app.py")),
    (
        "flower-superlink --insecure --port {0} --disable-runtime-dependency-installation",
        "flower-supernode --insecure --superlink 127.0.0.1:{0} --port {1}",
    ),
    "flwr run flower two-machines --stream --run-config steps={steps}",
    _halves,
    _printed_accuracy,
    {"flwr/config.toml": '[superlink.two-machines]\naddress = "127.0.0.1:{0}"\ninsecure = true\n'},
)
ISTHMUS = System(
    "Isthmus",
    ("isthmus.toml",),
    ("cloud-trainer serve --set models.allowed=['net'] --set server.listen=127.0.0.1:{0}",),
    "edge-agent run --config isthmus.toml --set trainer.address=127.0.0.1:{0}",
    _brought_home,
    _summarised_accuracy,
)
SYSTEMS = (PLAIN, LIGHTNING, FLOWER, ISTHMUS)
