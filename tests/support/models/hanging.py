"""A model of which a block never returns, as on a GPU that hangs: at the first worker that trains it while a file is there."""

import threading
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn


class _Hanging(nn.Module):
    def __init__(self, inputs: int, outputs: int, file: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.file = Path(file)

    def forward(self, value: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not value.is_meta:
            with suppress(FileNotFoundError):
                self.file.unlink()
                threading.Event().wait()
        return self.linear(value)


def hanging(block: int, file: str) -> nn.Module:
    """Four blocks, one of which hangs."""
    sizes = (64, 16, 16, 16, 10)
    return nn.Sequential(
        *(_Hanging(*sizes[i : i + 2], file) if i == block else nn.Linear(*sizes[i : i + 2]) for i in range(4))
    )
