"""The table of a coordinator's answers, by event and phase: data that `decide` reads and the page shows."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from edge_agent.coordinator.actions import Action
from edge_agent.coordinator.events import (
    BoundaryReached,
    ChangeDone,
    ChangeFailed,
    GoodWeightsWanted,
    LinkEnded,
    RunEvent,
    SessionBegun,
    SessionGone,
    StepHeldUp,
    StepsDone,
    StoodInFor,
    StopReached,
    TrainersAnswered,
    TrainerSilent,
    TrainersJoined,
    TrainersParted,
    TrainerStopping,
    WaySought,
    WayTaken,
    WorkFailed,
)
from edge_agent.coordinator.state import CoordinatorState, Phase
from shared.errors import (
    FencedError,
    GoneError,
    IsthmusError,
    ProtocolError,
    RefusedError,
    SessionLostError,
    UnreachableError,
    VersionError,
)

REFUSALS, FAILURES = 2, 4
"""Refusals, and failures of all kinds but lost links and lost sessions, with which a run ends unless it gets further between
them. Damage on the way may have caused one refusal; after a second one, the trainer would refuse the step each time."""
CHANGES = 3
"""Attempts to put one placement into force where trainers are lost, or fail at it. One that refuses it is not asked again."""
PARTED_SECONDS = 120.0
"""Longest time without a step for which a link may be down between trainers that answer. A network reroutes in less."""


class TableRow(NamedTuple):
    """Answers to one kind of event under one condition. The first row of an event whose condition holds counts."""

    event: type[RunEvent]
    condition: str
    """A clause for the page; empty for all other cases."""
    holds: Callable[[CoordinatorState, Any], bool]
    joining: Action
    training: Action
    changing: Action
    ending: Action

    def action(self, phase: Phase) -> Action:
        """Return the answer in a phase."""
        answers = {
            Phase.JOINING: self.joining,
            Phase.TRAINING: self.training,
            Phase.CHANGING: self.changing,
            Phase.ENDING: self.ending,
        }
        return answers[phase]


def is_refusal(failure: IsthmusError | None) -> bool:
    """Tell whether a trainer has understood a message and refused it. It would refuse it again."""
    return isinstance(failure, RefusedError) and not isinstance(failure, SessionLostError)


def counts(failure: IsthmusError) -> bool:
    """Tell whether a failure counts towards the end of the run. A lost link does not."""
    return isinstance(failure, ProtocolError) or is_refusal(failure)


def _always(_state: CoordinatorState, _event: RunEvent) -> bool:
    return True


def _ends_at_once(state: CoordinatorState, told: WorkFailed) -> bool:
    return told.is_own or not state.waits


def _is_final(_state: CoordinatorState, told: WorkFailed) -> bool:
    failure = told.failure
    is_named = isinstance(failure, ProtocolError | RefusedError) and not isinstance(failure, VersionError)
    return isinstance(failure, FencedError | GoneError) or not is_named


def _is_left(_state: CoordinatorState, told: StepHeldUp) -> bool:
    is_due = told.is_elsewhere or _is_too_long(told.seconds, told.replace_after_seconds)
    return told.is_trainer and told.has_checkpoint and is_due


def _is_too_long(seconds: float, limit_seconds: float | None) -> bool:
    return limit_seconds is not None and seconds >= limit_seconds


def _everywhere(action: Action) -> tuple[Action, Action, Action, Action]:
    return action, action, action, action


A = Action
_STAND_IN = A.STAND_IN, A.STAND_IN, A.WAIT, A.STAND_IN
"""A placement that comes into force may give the work to another one anyway."""
ROWS = (
    TableRow(SessionBegun, "", _always, *_everywhere(A.JOIN)),
    TableRow(
        LinkEnded,
        "a link of training that was up is lost, and `trainer.give_up_seconds` is not 0",
        lambda state, told: (
            state.waits and told.was_up and not told.is_of_evaluation and isinstance(told.failure, UnreachableError)
        ),
        *_everywhere(A.DIAL),
    ),
    TableRow(LinkEnded, "", _always, *_everywhere(A.FAIL)),
    TableRow(WaySought, "it answers by itself", lambda _, told: told.answers_itself, *_everywhere(A.DIAL_ITSELF)),
    TableRow(WaySought, "another one reaches it", lambda _, told: told.is_reached, *_everywhere(A.RELAY)),
    TableRow(WaySought, "", _always, *_everywhere(A.WAIT)),
    TableRow(
        WayTaken,
        "it has blocks, the other one has none, and neither an engine nor a pin chooses",
        lambda _, told: told.has_blocks and told.is_free and not told.is_chosen,
        *_everywhere(A.HAND_OVER),
    ),
    TableRow(WayTaken, "", _always, *_everywhere(A.WAIT)),
    TableRow(
        WorkFailed,
        "this device cannot compute, or `trainer.give_up_seconds` is 0",
        _ends_at_once,
        *_everywhere(A.END),
    ),
    TableRow(
        WorkFailed,
        "a trainer has nothing of the session, after a refusal",
        lambda state, told: isinstance(told.failure, GoneError) and is_refusal(state.mending),
        A.END_BY_FIRST,
        A.END,
        A.END,
        A.END,
    ),
    TableRow(
        WorkFailed,
        "a trainer is fenced, has nothing of the session or is away for too long, or anything that is not named below",
        _is_final,
        *_everywhere(A.END),
    ),
    TableRow(
        WorkFailed,
        "a trainer has lost the session from its memory",
        lambda _, told: isinstance(told.failure, SessionLostError),
        A.RETRY,
        A.RETRY,
        A.RETRY,
        A.END,
    ),
    TableRow(
        WorkFailed,
        f"that is the refusal number {REFUSALS} or the failure number {FAILURES} without progress",
        lambda state, _: state.refusals >= REFUSALS or state.failures >= FAILURES,
        *_everywhere(A.END),
    ),
    TableRow(WorkFailed, "a trainer refuses", lambda _, told: is_refusal(told.failure), A.END, A.RETRY, A.RETRY, A.END),
    TableRow(WorkFailed, "a trainer fails, or messages are damaged", _always, A.RETRY, A.RETRY, A.RETRY, A.END),
    TableRow(
        TrainerSilent,
        "for `trainer.replace_after_seconds`, and a checkpoint is shared",
        lambda _, told: told.has_checkpoint and _is_too_long(told.seconds, told.replace_after_seconds),
        *_everywhere(A.LEAVE_OUT),
    ),
    TableRow(
        TrainerSilent,
        "it has no state, is away for `trainer.stand_in_after_seconds`, and not all go back",
        lambda state, told: (
            told.may_begin_again and not state.goes_back and told.seconds >= told.stand_in_after_seconds
        ),
        *_STAND_IN,
    ),
    TableRow(TrainerSilent, "", _always, *_everywhere(A.WAIT)),
    TableRow(StoodInFor, "", _always, *_everywhere(A.JOIN)),
    TableRow(StepHeldUp, "this device holds it up", lambda _, told: told.is_device, *_everywhere(A.WAIT)),
    TableRow(
        StepHeldUp,
        "a trainer does, for `trainer.replace_after_seconds`, or has no block in the newest checkpoint; one is shared",
        _is_left,
        *_everywhere(A.LEAVE_OUT),
    ),
    TableRow(
        StepHeldUp,
        "for `trainer.give_up_seconds` more, or `trainer.call_timeout_seconds` where that is left out",
        lambda _, told: told.seconds >= told.limit_seconds + told.patience_seconds,
        *_everywhere(A.END),
    ),
    TableRow(
        StepHeldUp,
        "a trainer without a state does, and not all go back",
        lambda state, told: told.is_trainer and told.may_begin_again and not state.goes_back,
        *_STAND_IN,
    ),
    TableRow(StepHeldUp, "", _always, *_everywhere(A.WAIT)),
    TableRow(
        TrainersParted,
        f"for {PARTED_SECONDS:g} s",
        lambda _, told: told.seconds >= PARTED_SECONDS,
        *_everywhere(A.END),
    ),
    TableRow(TrainersParted, "", _always, *_everywhere(A.WAIT)),
    TableRow(
        TrainersAnswered,
        "a trainer was left out, or the run is resumed or has diverged",
        lambda state, _: state.goes_back,
        *_everywhere(A.GO_BACK),
    ),
    TableRow(TrainersAnswered, "all have their state", lambda _, told: not told.some_lost, *_everywhere(A.GO_ON)),
    TableRow(
        TrainersAnswered,
        "those that have none had none to lose",
        lambda _, told: told.may_begin_again,
        *_everywhere(A.REPEAT),
    ),
    TableRow(TrainersAnswered, "", _always, *_everywhere(A.GO_BACK)),
    TableRow(TrainersJoined, "", _always, A.TRAIN, A.TRAIN, A.TRAIN, A.FINISH),
    TableRow(BoundaryReached, "all steps are done", lambda _, told: told.is_end, *_everywhere(A.FETCH)),
    TableRow(
        BoundaryReached,
        "this device has still to do its last step in a group",
        lambda _, told: told.is_leaving,
        *_everywhere(A.TRAIN),
    ),
    TableRow(
        BoundaryReached,
        "a stop is due",
        lambda _, told: told.must_stop,
        *_everywhere(A.CHECKPOINT),
    ),
    TableRow(BoundaryReached, "another placement is due", lambda _, told: told.is_change_due, *_everywhere(A.CHANGE)),
    TableRow(BoundaryReached, "an operator pauses the run", lambda _, told: told.is_paused, *_everywhere(A.PAUSE)),
    TableRow(BoundaryReached, "", _always, *_everywhere(A.TRAIN)),
    TableRow(ChangeDone, "", _always, *_everywhere(A.TRAIN)),
    TableRow(
        ChangeFailed,
        "a trainer is fenced or has nothing of the session",
        lambda _, told: isinstance(told.failure, FencedError | GoneError),
        *_everywhere(A.END),
    ),
    TableRow(
        ChangeFailed,
        f"a trainer is lost or fails, fewer than {CHANGES} times",
        lambda _, told: (
            told.attempts < CHANGES and isinstance(told.failure, UnreachableError | SessionLostError | ProtocolError)
        ),
        *_everywhere(A.ASK_AGAIN),
    ),
    TableRow(ChangeFailed, "", _always, *_everywhere(A.DROP)),
    TableRow(
        TrainerStopping,
        "it has blocks, and nobody takes them over",
        lambda _, told: told.has_blocks and not told.is_handed_over,
        *_everywhere(A.STOP),
    ),
    TableRow(TrainerStopping, "", _always, *_everywhere(A.WAIT)),
    TableRow(StopReached, "a stop is asked for", lambda _, told: told.is_asked, *_everywhere(A.FINISH)),
    TableRow(StopReached, "a trainer is about to stop", _always, *_everywhere(A.JOIN)),
    TableRow(StepsDone, "", _always, *_everywhere(A.FINISH)),
    TableRow(GoodWeightsWanted, "", _always, *_everywhere(A.JOIN)),
    TableRow(
        SessionGone,
        "a checkpoint is shared",
        lambda _, told: told.has_checkpoint,
        *_everywhere(A.END_RESUMABLE),
    ),
    TableRow(
        SessionGone,
        "the run has begun again, and a trainer had failed",
        lambda state, _: state.began_again and isinstance(state.mending, ProtocolError),
        *_everywhere(A.END_BY_FIRST),
    ),
    TableRow(
        SessionGone,
        "an operator has closed it, or the run has begun again and done no step since, unless in a group",
        lambda state, told: told.is_closed or (state.began_again and told.steps == 0 and not told.is_member),
        *_everywhere(A.END),
    ),
    TableRow(SessionGone, "", _always, *_everywhere(A.BEGIN_AGAIN)),
)


def markdown() -> str:
    """Return the table as a page shows it."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| what is told | if | answer |"
    yield "|---|---|---|"
    before: type[RunEvent] | None = None
    for row in ROWS:
        name = "" if row.event is before else (row.event.__doc__ or "").partition("\n")[0].rstrip(".")
        before = row.event
        yield f"| {name} | {row.condition} | {_answers(row)} |"


def _answers(row: TableRow) -> str:
    """Return the answer of a row; where phases have different ones, that of most phases comes last, without their names."""
    phases: dict[str, list[str]] = {}
    for phase in Phase:
        phases.setdefault(row.action(phase).value, []).append(phase.value)
    *fewer, most = sorted(phases, key=lambda answer: len(phases[answer]))
    return "; ".join(
        [*(f"{', '.join(phases[answer])}: {answer}" for answer in fewer), f"else {most}" if fewer else most]
    )
