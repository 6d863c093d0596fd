"""State that no checkpoint keeps: it is named before training begins. It is buffers that the file lacks, and plain numbers."""

import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from edge_agent.experiment.unkept import unkept
from edge_agent.experiment.workload import Workload
from shared.errors import ModelError
from tests.support.plain import assert_same_bits
from tests.support.running import edge_config


class Beside(nn.Linear):
    """A linear layer that adds state in buffers of each kind."""

    def __init__(self, inputs: int, outputs: int, kind: str) -> None:
        super().__init__(inputs, outputs)
        drawn = torch.rand(inputs) if kind == "drawn" else torch.full((inputs,), 0.5)
        self.register_buffer("kept", drawn, persistent=kind == "persistent")
        self.kind = kind

    def forward(self, value: Tensor) -> Tensor:
        if self.training and self.kind in ("written", "persistent"):
            self.kept.add_(1.0)
        if self.training and self.kind == "replaced":
            self.kept = self.kept + 1.0
        return super().forward(value + self.kept)


def beside(kind: str) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), Beside(8, 8, kind), nn.Linear(8, 10))


def workload(factory: str, **kwargs: str) -> Workload:
    digits = 'data.train={factory="tests.support.samples:FlatDigits"}'
    arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in kwargs.items())
    return Workload(edge_config(f'model.factory="{factory}"', f"model.kwargs={{{arguments}}}", digits))


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("written", ["1.kept"]),
        ("replaced", ["1.kept"]),
        ("drawn", ["1.kept"]),
        ("constant", []),
        ("persistent", []),
    ],
)
def test_state_that_training_changes_or_the_factory_draws_is_named_and_unchanged(kind, named):
    built = workload(f"{__name__}:beside", kind=kind)
    before = {name: value.clone() for name, value in built.chain.module.named_buffers()}
    assert unkept(built).buffers == named
    assert unkept(built).attributes == [], "what a mode switches is no count"
    assert_same_bits(before, dict(built.chain.module.named_buffers()))


def test_all_of_several_blocks_are_named():
    assert unkept(workload("tests.support.models.remembering:remembering")).buffers == [
        "1.mean",
        "1.seen",
        "2.mean",
        "2.seen",
    ]


class Counting(nn.Linear):
    """A linear layer that counts its training steps, and computes nothing with their number."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.count = 0

    def forward(self, value: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return super().forward(value)


def counting() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), Counting(8, 8), nn.Linear(8, 10))


def test_a_number_that_training_changes_in_a_plain_attribute_is_named_and_stays_as_it_was():
    built = workload(f"{__name__}:counting")
    assert unkept(built).attributes == ["1.count"]
    assert built.chain.module[1].count == 0


class Packing(nn.Linear):
    """A layer whose lengths must be 1 or more. least: it takes shorter ones as so long."""

    def __init__(self, least: int) -> None:
        super().__init__(2, 8)
        self.least = least

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(values, lengths.clamp(min=self.least), batch_first=True, enforce_sorted=False)
        return super().forward(pad_packed_sequence(packed, batch_first=True, total_length=values.shape[1])[0])


class Packed(nn.Module):
    def __init__(self, least: int) -> None:
        super().__init__()
        self.first, self.last = Packing(least), nn.Linear(8, 3)

    def blocks(self) -> list[nn.Module]:
        return [self.first, self.last]

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        return self.last(self.first(values, lengths))


class Sequences:
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (torch.ones(5, 2), torch.tensor(1 + index % 5)), torch.zeros(5, 3)


def packed(least: int) -> Workload:
    data = f'data.train={{factory="{__name__}:Sequences"}}'
    factory = f'model.factory="{__name__}:Packed"'
    return Workload(edge_config(factory, f"model.kwargs={{least={least}}}", data, 'training.loss="mse"'))


def test_a_model_that_fails_on_made_up_inputs_is_refused_in_a_sentence_with_what_works():
    with pytest.raises(ModelError, match=r"made-up inputs .* RuntimeError: Length .*; .*lengths\.clamp\(min=1\)"):
        unkept(packed(least=0))
    assert unkept(packed(least=1)).buffers == []
