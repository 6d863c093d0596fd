"""What a training run leaves: its figures, and the model with the weights of both sides."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
from torch import nn


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """One block and the side that ran it."""

    name: str
    side: str
    parameters: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run. accuracy and test_loss are those of the last evaluation, None where there was none."""

    session: str
    accuracy: float | None
    test_loss: float | None
    train_loss: float
    seconds: float
    steps: int
    samples_per_second: float
    bytes_up: int
    bytes_down: int
    cut: int
    blocks: list[BlockPlace]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run: the figures, and the user's own module with the trained weights of both sides in it."""

    summary: Summary
    module: nn.Module

    def write(self, directory: Path) -> Path:
        """Write `summary.json` and `model.safetensors` (state-dict keys are the module's own); returns the former's path."""
        directory.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.cpu().contiguous() for name, tensor in self.module.state_dict().items()}
        safetensors.torch.save_file(state, directory / "model.safetensors")
        path = directory / "summary.json"
        path.write_text(json.dumps(asdict(self.summary), indent=2) + "\n")
        return path
