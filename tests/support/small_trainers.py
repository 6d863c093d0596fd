"""Trainers that have room for few blocks at a time."""

import pytest

from shared.client.trainer import TrainerClient
from shared.errors import RefusedError
from shared.training.step_seconds import StepSeconds


def have_room_for(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """Have every trainer refuse to measure more blocks than these at once, as one does whose memory ends."""
    measure_stage = TrainerClient.measure_stage

    async def with_little_room(
        self: TrainerClient, session_id: str, first: int, stop: int, repeats: int, samples: int | None = None
    ) -> list[StepSeconds]:
        if stop - first > blocks:
            raise RefusedError("measuring blocks failed with MemoryError")
        return await measure_stage(self, session_id, first, stop, repeats, samples)

    monkeypatch.setattr(TrainerClient, "measure_stage", with_little_room)
