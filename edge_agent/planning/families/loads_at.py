"""The loads of the layouts of one question: what the simulator says of a step, where the profile has costs by samples."""

from collections.abc import Sequence

from edge_agent.planning.cost import Conditions, Loads, joined, loads_of, simulated_loads
from edge_agent.planning.families.question import Question
from edge_agent.planning.layout import Layout


def loads_at(question: Question, layouts: Sequence[Layout], at: Conditions) -> Loads:
    """Return the loads of each, in this order. They are exact under these conditions, and nearly so under ones that are near.

    PlanError for a width of which the profile has no codec.
    """
    profile = question.profile
    if not any(_is_simulated(question, layout) for layout in layouts):
        return loads_of(profile, layouts)
    return joined(
        [
            simulated_loads(profile, layout, at) if _is_simulated(question, layout) else loads_of(profile, [layout])
            for layout in layouts
        ]
    )


def _is_simulated(question: Question, layout: Layout) -> bool:
    """Tell whether tables of whole batches say too little of a layout, or others that it is weighed against are simulated."""
    knows_samples = question.profile.by_samples is not None
    return knows_samples and (question.is_tiers or not layout.is_stacked or bool(layout.widths))
