"""The record of a run (schema `isthmus.record/v1`): all that decides the bits of its weights, except its data, in lines
of JSON.

The first line is the session's record with its configuration. Then follow, as they happen: `{"place": DOCUMENT}`, a
placement that is in force from the next step on; `{"back": STEP}`, a checkpoint to which all workers went back; and
`[STEP, WORKER, LOSS, ORDER]`, a worker's report of a step: its loss as a hexadecimal float, where it has computed one,
and the order in which it computed (`StepDone.order`). A report that says neither has no line. Knows nothing of torch.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from edge_agent.sessions.session_record import SessionRecord
from edge_agent.training.events import Placed, RolledBack, SessionOpened
from shared.errors import ConfigError, DifferentError, IsthmusError
from shared.events import Events
from shared.events.worker import WorkerDone
from shared.placement import Placement, document_of, parse_placement
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1.link_pb2 import StepDone

_log = structlog.get_logger(__name__)
SCHEMA = "isthmus.record/v1"


def record_path(directory: Path, session: str) -> Path:
    """Return the path of the record of a session, in the folder of its results."""
    return directory / f"{session}.record.jsonl"


class RunRecorder:
    """Writes the record of a run, line by line, so that a process that is killed leaves all of it. Used on the event loop."""

    def __init__(self, directory: Path, events: Events) -> None:
        """directory: of the results. events: of the run."""
        self._directory = directory
        self._handle: int | None = None
        self._placed: Placement | None = None
        """Placement that was written last, but for its version."""
        events.subscribe(SessionOpened, lambda event: self._begin(event.run.session.stored.record))
        events.subscribe(Placed, lambda event: self._place(event.placement))
        events.subscribe(RolledBack, lambda event: self._go_back(event.step))
        events.subscribe(WorkerDone, lambda event: self._note(event.report))

    def _begin(self, session: SessionRecord) -> None:
        """Record this session from now on, from its beginning or where its record ended."""
        self._close()
        path = record_path(self._directory, session.session_id)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            is_new = os.fstat(self._handle).st_size == 0
        except OSError as cause:
            _log.warning("the run is not recorded", path=str(path), reason=cause.strerror)
            return
        self._placed = None
        if is_new:
            self._write({"schema": SCHEMA, "session": session.model_dump(mode="json")})

    def _place(self, placement: Placement) -> None:
        """Links that were lost and dialled again change nothing."""
        if document_of(placement) != (None if self._placed is None else document_of(self._placed)):
            self._placed = placement
            self._write({"place": document_of(placement)})

    def _go_back(self, step: int) -> None:
        self._placed = None
        self._write({"back": step})

    def _note(self, report: StepDone) -> None:
        if report.samples or report.order:
            loss = float(report.loss).hex() if report.samples else None
            self._write([report.step, report.worker, loss, list(report.order)])

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _write(self, line: object) -> None:
        if self._handle is None:
            return
        try:
            os.write(self._handle, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as cause:
            _log.warning("the run is recorded no more", reason=cause.strerror)
            self._close()


@dataclass(slots=True)
class Stretch:
    """Steps under one placement, with nothing in flight before and after."""

    document: dict[str, Any]
    first_step: int
    stop_step: int = 0
    orders: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    """By worker and step; as in `StepDone.order`."""
    losses: dict[int, list[float]] = field(default_factory=dict)
    """By step: those of all workers that computed one."""

    def placement(self, blocks: int, batch_size: int) -> Placement:
        """The placement. Raises ConfigError for a document that is none."""
        return parse_placement(self.document, "the record", blocks, batch_size)

    def cut_before(self, step: int) -> None:
        """Forget this step and all after it."""
        self.stop_step = min(self.stop_step, step)
        self.losses = {each: found for each, found in self.losses.items() if each < step}
        for orders in self.orders.values():
            for each in [each for each in orders if each >= step]:
                del orders[each]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of a run in a file: only the steps that its weights follow from."""

    session: SessionRecord
    stretches: list[Stretch]

    @property
    def steps(self) -> int:
        """Return the number of finished steps."""
        return self.stretches[-1].stop_step if self.stretches else 0


def read_record(path: Path) -> RunRecord:
    """The record in a file. Raises ConfigError where there is none, DifferentError for one that is not whole."""
    try:
        with path.open() as lines:
            return _parsed(lines, path)
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there; a run is recorded where output.record is true") from None
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path} cannot be read: {cause}") from cause


def _parsed(lines: Iterable[str], path: Path) -> RunRecord:
    number, session, stretches = 0, None, list[Stretch]()
    try:
        for number, text in enumerate(lines, 1):
            match json.loads(text):
                case {"schema": schema, "session": dict(told)} if number == 1:
                    if schema != SCHEMA:
                        raise ConfigError(f'{path}: schema is {schema!r}; this version reads "{SCHEMA}"')
                    session = SessionRecord.model_validate_json(json.dumps(told))
                    if session.protocol_version != PROTOCOL_VERSION:
                        raise ConfigError(
                            f"{path} is of another protocol than {PROTOCOL_VERSION}, which this version speaks; repeat it "
                            "with the version of Isthmus that recorded it"
                        )
                case {"place": dict(document)}:
                    first = stretches[-1].stop_step if stretches else 0
                    stretches.append(Stretch(document, first, first))
                case {"back": int(step)}:
                    for stretch in stretches:
                        stretch.cut_before(step)
                    stretches = [one for one in stretches if one.first_step < step]
                case [int(step), str(worker), loss, list(order)] if stretches:
                    _note(stretches[-1], step, worker, loss, order)
                case _:
                    raise ValueError("it is no line of a record")
    except IsthmusError:
        raise
    except (ValueError, TypeError, ValidationError) as cause:
        raise DifferentError(f"{path}: line {number}: {cause}") from cause
    if session is None:
        raise DifferentError(f"{path} is empty")
    _check_whole(stretches, path)
    return RunRecord(session, [stretch for stretch in stretches if stretch.stop_step > stretch.first_step])


def _note(stretch: Stretch, step: int, worker: str, loss: str | None, order: list[int]) -> None:
    if step < stretch.first_step:
        raise ValueError(f"step {step} was done before its placement came into force")
    if not all(isinstance(each, int) for each in order) or len(order) % 2:
        raise ValueError("the order is none")
    if order:
        stretch.orders.setdefault(worker, {})[step] = order
    if loss is not None:
        stretch.losses.setdefault(step, []).append(float.fromhex(loss))
        stretch.stop_step = max(stretch.stop_step, step + 1)


def _check_whole(stretches: Sequence[Stretch], path: Path) -> None:
    expected = 0
    for stretch in stretches:
        for step in range(expected, stretch.stop_step):
            if step not in stretch.losses:
                raise DifferentError(f"{path} says nothing of step {step}; a run is recorded from its first step on")
        expected = stretch.stop_step
