"""The section that says how a run chooses among several trainers."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from shared.config import Section


class ChoiceSection(Section):
    policy: Literal["best", "edgemove", "fixed"] | None = Field(default=None, examples=["best"])
    """Choice among several `[[trainers]]` without `[placement]`. "best" goes to the trainer with the fastest steps where that
    pays, or has all blocks here; "edgemove" is paper 003's. Both need an `engine.profile` of two workers. "fixed" stays with
    the first that answers, and goes to another by `edge-agent handover` or when it stops. Left out, it is "best" with such a
    profile, and "fixed" without one."""
    cycle_steps: PositiveInt = 500
    """Steps of a cycle of the policy "edgemove", after which it compares times."""
    probe_bytes_per_minute: NonNegativeInt = 10_000_000
    """Bytes that probes of the rates to trainers may take, both ways and over all of them. With 0, rates are those of the
    present link."""
