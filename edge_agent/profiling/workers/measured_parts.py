"""Finished parts of an unfinished profile of several workers, in a file beside it, and the check that they are of today's
workers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveFloat

from edge_agent.planning import Profile, load_profile, profile_to_json
from edge_agent.profiling.profile_parts import Part, PartFile
from edge_agent.profiling.rounds import Run
from shared.config import Section
from shared.errors import PlanError
from shared.files.whole_file import write_whole
from shared.training.step_seconds import StepSeconds


class ToMeasure(NamedTuple):
    """One thing to measure on a worker: steps of consecutive blocks on some samples."""

    first: int
    stop: int
    samples: int

    @property
    def run(self) -> Run:
        """The blocks [first, stop)."""
        return self.first, self.stop

    def __str__(self) -> str:
        return f"{self.first}:{self.stop} on {self.samples}"


class LinkSection(Section):
    """The rates of a link in bit/s, away from the device and towards it, and its round-trip time."""

    uplink: PositiveFloat
    downlink: PositiveFloat
    round_trip_seconds: float = Field(ge=0.0)


Round = tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat]
"""The mean seconds of forward, backward and update in the steps of one round."""


class WorkerMeasurements(Part):
    """The measurements of several workers and of the links between them."""

    of: str = "workers"
    settings: dict[str, str] = Field(default={})
    """Settings that decided the figures, by the name of each in a sentence."""
    seconds: dict[str, dict[str, tuple[Round, ...]]] = Field(default={})
    """By worker and by piece, as "0:2 on 32": the rounds; none at all where the worker has no room."""
    links: dict[str, LinkSection] = Field(default={})
    """By the names of both ends, as "near-far"."""
    segments: list[list[int]] | None = None
    """Numbers of the links that share a segment; None where that is not known yet."""
    steps: dict[str, PositiveFloat] = Field(default={})
    """Seconds of a step of real training, by what was tried."""


class MeasuredParts:
    """The parts of one profile. Its methods block, and raise StorageError."""

    def __init__(self, out: Path, settings: Mapping[str, str]) -> None:
        """out: the profile itself. settings: what decides the figures, by the name of each in a sentence.

        Raises PlanError where one of the two files is of something else.
        """
        self._out, self._path = out, out.with_name(out.name + ".parts")
        self._file = PartFile(self._path, WorkerMeasurements)
        self._settings = dict(settings)
        self._check_whole(out)
        self.done = self._stored()
        """The measurements so far."""

    def add(self, worker: str, piece: ToMeasure, rounds: Sequence[StepSeconds]) -> None:
        """Take in the rounds of a piece on a worker; `save` writes them down."""
        of_worker = self.done.seconds.get(worker, {}) | {str(piece): tuple(tuple(one) for one in rounds)}
        self.done = self.done.model_copy(update={"seconds": self.done.seconds | {worker: of_worker}})

    def add_link(self, near: str, far: str, link: LinkSection) -> None:
        """Take in what a link carries."""
        self.done = self.done.model_copy(update={"links": self.done.links | {f"{near}-{far}": link}})

    def add_segments(self, segments: list[list[int]]) -> None:
        """Take in which links share a segment."""
        self.done = self.done.model_copy(update={"segments": segments})

    def add_step(self, tried: str, seconds: float) -> None:
        """Take in what a step of a placement takes."""
        self.done = self.done.model_copy(update={"steps": self.done.steps | {tried: seconds}})

    def rounds(self, worker: str, piece: ToMeasure) -> tuple[StepSeconds, ...] | None:
        """Return the rounds of a piece on a worker; none at all where there is no room, None where that is not known."""
        rounds = self.done.seconds.get(worker, {}).get(str(piece))
        return None if rounds is None else tuple(StepSeconds(*one) for one in rounds)

    def link(self, near: str, far: str) -> LinkSection | None:
        """Return the measurement of a link, or None."""
        return self.done.links.get(f"{near}-{far}")

    def save(self) -> None:
        """Write it down; where nothing is measured yet, there is nothing to go on with, and no file."""
        if self.done.seconds or self.done.links:
            self._file.save(self.done)

    def finish(self, profile: Profile) -> None:
        """Write the whole profile, after which no part is needed any more."""
        text = profile_to_json(profile)
        write_whole(self._out, lambda scratch: scratch.write_text(text))
        self._file.remove()

    def _stored(self) -> WorkerMeasurements:
        stored = self._file.find()
        if stored is None:
            return WorkerMeasurements(settings=self._settings)
        for name, now in self._settings.items():
            if (then := stored.settings.get(name)) != now:
                raise PlanError(
                    f"{self._path}: what was measured there has {name} {then}, and this profile has {now}; remove that "
                    "file to begin again, or choose another --out"
                )
        return stored

    def _check_whole(self, out: Path) -> None:
        """Refuse to replace a file of other workers. Raises PlanError."""
        if not out.exists():
            return
        before = load_profile(out)
        stages = ", ".join(before.names)
        found = {"model": before.model, "batch size": str(before.batch_size), "workers": stages}
        for name, then in found.items():
            if self._settings[name] != then:
                raise PlanError(
                    f"{out}: the profile that is there has {name} {then}, and this one has {self._settings[name]}; remove that "
                    "file, or choose another --out"
                )
