"""The decision after an event: a pure function of the state and the event, and the value that it keeps."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from edge_agent.coordinator.actions import Action
from edge_agent.coordinator.events import GoodWeightsWanted, RunEvent, SessionBegun, TrainersJoined, WorkFailed
from edge_agent.coordinator.state import CoordinatorState, Phase
from edge_agent.coordinator.table import ROWS, counts, is_refusal

_PHASES = {
    Action.JOIN: Phase.JOINING,
    Action.RETRY: Phase.JOINING,
    Action.LEAVE_OUT: Phase.JOINING,
    Action.ASK_AGAIN: Phase.JOINING,
    Action.DROP: Phase.JOINING,
    Action.TRAIN: Phase.TRAINING,
    Action.CHANGE: Phase.CHANGING,
    Action.FINISH: Phase.ENDING,
    Action.END: Phase.ENDING,
    Action.END_BY_FIRST: Phase.ENDING,
    Action.END_RESUMABLE: Phase.ENDING,
    Action.BEGIN_AGAIN: Phase.ENDING,
}
"""Phases that actions begin. The others leave the phase as it is, and an ending run ends."""


class Decided(NamedTuple):
    """An action, and the state of the run from then on."""

    action: Action
    state: CoordinatorState


def decide(state: CoordinatorState, event: RunEvent) -> Decided:
    """Return what follows from an event."""
    if isinstance(event, SessionBegun):
        state = CoordinatorState(waits=state.waits, goes_back=event.is_resumed, began_again=event.is_again)
    elif isinstance(event, WorkFailed):
        state = _counted(state, event)
    action = next(row.action(state.phase) for row in ROWS if isinstance(event, row.event) and row.holds(state, event))
    if isinstance(event, TrainersJoined):
        state = replace(state, goes_back=False, mending=None)
    elif isinstance(event, GoodWeightsWanted) or action in (Action.LEAVE_OUT, Action.GO_BACK):
        state = replace(state, goes_back=True)
    elif isinstance(event, WorkFailed) and action is Action.RETRY:
        state = replace(state, mending=event.failure)
    if state.phase is not Phase.ENDING:
        state = replace(state, phase=_PHASES.get(action, state.phase))
    return Decided(action, state)


def _counted(state: CoordinatorState, told: WorkFailed) -> CoordinatorState:
    """Count a failure. Failures count until the run has passed all steps that were under way at the first one: after a return
    to a checkpoint, it may take many steps to reach the failing one."""
    if not counts(told.failure):
        return state
    if state.beyond_step is None or told.done_step >= state.beyond_step:
        # With nothing under way, one step has to be done.
        state = replace(state, beyond_step=max(told.begun_step, told.done_step + 1), failures=0, refusals=0)
    return replace(state, failures=state.failures + 1, refusals=state.refusals + is_refusal(told.failure))


class Coordinator:
    """The state of one session's run, and the way by which each event changes it. Used on the event loop."""

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self._note_phase: Callable[[Phase], object] = lambda _phase: None

    def watch(self, note_phase: Callable[[Phase], object]) -> None:
        """Have the phase of now noted, and each that begins after it."""
        self._note_phase = note_phase
        note_phase(self.state.phase)

    def answer(self, event: RunEvent) -> Action:
        """Return what would follow from an event that is not told yet."""
        return decide(self.state, event).action

    def tell(self, event: RunEvent) -> Action:
        """Note an event, and return what follows from it."""
        before = self.state.phase
        action, self.state = decide(self.state, event)
        if self.state.phase is not before:
            self._note_phase(self.state.phase)
        return action
