"""Finished parts of an unfinished profile of a chain, in a file beside it, and the check that they are of the chain of
today."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, PositiveFloat

from edge_agent.profiling.profile_parts import Part, PartFile
from shared.config import Section
from shared.errors import PlanError
from shared.planning import load_profile

Run = tuple[int, int]
"""The blocks [first, stop)."""


class MeasuredLink(Section):
    """The rates of a link in bit/s, away from the device and towards it, and its round-trip time."""

    uplink: PositiveFloat
    downlink: PositiveFloat
    round_trip_seconds: float = Field(ge=0.0)


class ChainMeasurements(Part):
    """The measurements of a chain."""

    of: str = "chain"
    settings: dict[str, str] = Field(default={})
    """Settings that decided the figures, by the name of each in a sentence."""
    seconds: dict[str, dict[str, tuple[PositiveFloat, ...]]] = Field(default={})
    """By worker and by run, as "0:2": the mean seconds of a step, one a round; none at all where the worker has no room."""
    links: dict[str, MeasuredLink] = Field(default={})
    """By the names of both ends, as "near-far"."""


class ChainPartFile:
    """The parts of one profile. Its methods block, and raise StorageError."""

    def __init__(self, out: Path, settings: Mapping[str, str]) -> None:
        """out: the profile itself. settings: what decides the figures, by the name of each in a sentence.

        Raises PlanError where one of the two files is of something else.
        """
        self._path = out.with_name(out.name + ".parts")
        self._file = PartFile(self._path, ChainMeasurements)
        self._settings = dict(settings)
        self._check_whole(out)
        self.done = self._stored()
        """The measurements so far."""

    def add(self, worker: str, run: Run, means: tuple[float, ...]) -> None:
        """Take in what a run takes on a worker; `save` writes it down."""
        of_worker = self.done.seconds.get(worker, {}) | {_key(run): means}
        self.done = self.done.model_copy(update={"seconds": self.done.seconds | {worker: of_worker}})

    def add_link(self, near: str, far: str, link: MeasuredLink) -> None:
        """Take in what a link carries."""
        self.done = self.done.model_copy(update={"links": self.done.links | {f"{near}-{far}": link}})

    def means(self, worker: str, run: Run) -> tuple[float, ...] | None:
        """Return the mean seconds of a run on a worker, one a round; none at all where there is no room, None where
        that is not known."""
        return self.done.seconds.get(worker, {}).get(_key(run))

    def link(self, near: str, far: str) -> MeasuredLink | None:
        """Return the measurement of a link, or None."""
        return self.done.links.get(f"{near}-{far}")

    def save(self) -> None:
        """Write it down; where nothing is measured yet, there is nothing to go on with, and no file."""
        if self.done.seconds or self.done.links:
            self._file.save(self.done)

    def remove(self) -> None:
        """It is not needed any more."""
        self._file.remove()

    def _stored(self) -> ChainMeasurements:
        stored = self._file.find()
        if stored is None:
            return ChainMeasurements(settings=self._settings)
        for name, now in self._settings.items():
            if (then := stored.settings.get(name)) != now:
                raise PlanError(
                    f"{self._path}: what was measured there has {name} {then}, and this profile has {now}; remove that "
                    "file to begin again, or choose another --out"
                )
        return stored

    def _check_whole(self, out: Path) -> None:
        """Refuse to replace a file of another chain. Raises PlanError."""
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


def _key(run: Run) -> str:
    return f"{run[0]}:{run[1]}"
