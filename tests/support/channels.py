"""Channels of one link by themselves: four blocks cut in the middle, in forms that code nothing."""

from collections.abc import Sequence

from shared.codec import FeedbackMode
from shared.execution.feedback import Feedback
from shared.placement import ArrivalJudge, Crossing, StepPlan, Window, two_workers, unnamed_blocks
from shared.runtime.channel import Channel
from shared.runtime.forms import LabelForm
from tests.support.virtual import InlineWorker

STALENESS = 1
_PLACEMENT = two_workers("edge", "near", 2, 4, 4, staleness=STALENESS)


def channels(crossings: Sequence[Crossing], first_step: int = 0, worker: str = "edge") -> list[Channel]:
    """Return the channels of all that leaves by one link, or comes, from a step on. worker: at which they are."""
    judge = ArrivalJudge(Window(StepPlan(_PLACEMENT, unnamed_blocks(4)), worker, first_step))
    feedback = Feedback(FeedbackMode.OFF, (), ())
    return [
        Channel(LabelForm(one, _PLACEMENT, lambda _labels: None), judge, InlineWorker(), feedback, number)
        for number, one in enumerate(crossings)
    ]
