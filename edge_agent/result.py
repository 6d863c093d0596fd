"""What a training run leaves: its figures, and the model with the weights of both sides."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
from torch import nn

from edge_agent.observer import Progress
from shared.model.block_state import savable
from shared.model.chain import Chain


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

    @classmethod
    def of(
        cls, session: str, progress: Progress, test_loss: float | None, seconds: float, chain: Chain, cut: int
    ) -> "Summary":
        """The figures of a run that has got as far as `progress` says, with blocks [0, cut) on the edge."""
        return cls(
            session=session,
            accuracy=progress.accuracy,
            test_loss=test_loss,
            train_loss=progress.loss,
            seconds=round(seconds, 3),
            steps=progress.steps,
            samples_per_second=round(progress.samples / seconds, 1),
            bytes_up=progress.bytes_up,
            bytes_down=progress.bytes_down,
            cut=cut,
            blocks=[
                BlockPlace(
                    block.name,
                    "edge" if block.index < cut else "cloud",
                    sum(parameter.numel() for parameter in block.named_parameters().values()),
                )
                for block in chain.blocks
            ],
        )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A finished run: the figures, and the user's own module with the trained weights of both sides in it."""

    summary: Summary
    module: nn.Module

    def write(self, directory: Path) -> Path:
        """Write `summary.json` and `model.safetensors` (state-dict keys are the module's own); returns the former's path."""
        directory.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(savable(self.module.state_dict()), directory / "model.safetensors")
        path = directory / "summary.json"
        path.write_text(json.dumps(asdict(self.summary), indent=2) + "\n")
        return path
