"""The answers of `edge-agent plan`: the best layout and those after it, or the ranking of trainers, groups or placements.

Notes beside a plan say what nobody measured or what was taken for granted, and why one that looks faster was not taken.
"""

from dataclasses import replace
from pathlib import Path

from edge_agent.commands.plans.placed import costed_placements, write_placement
from edge_agent.commands.plans.printing import print_ranked
from edge_agent.planner_names import ACCURATE, BEST, EXACTNESS_MARGIN
from edge_agent.planning import (
    Conditions,
    Plan,
    Profile,
    Question,
    accurate,
    best_order,
    conditions_of,
    first_layout,
    greedy,
    ranked,
)
from edge_agent.planning.candidates import load_candidates, ranked_candidates
from edge_agent.planning.group_choice import group_plans
from edge_agent.planning.planners.registry import default_planner, planned
from shared.errors import PlanError

LEAST_GAIN = 0.001
"""Part of the time per step below which nothing counts as faster."""


def print_planned(
    question: Question,
    planner: str | None,
    *,
    any_order: bool,
    explain: int,
    placement_out: Path | None,
    as_json: bool,
) -> None:
    """Plan and print, and write the placement to a file. explain: plans after the best to show. PlanError, and StorageError."""
    given = question.profile
    for name in question.space.inputs_to:
        if name not in given.names[1:]:
            raise PlanError(f"--inputs-to names {name!r}; the trainers of the profile are {', '.join(given.names[1:])}")
    if any_order and not question.is_pair and not question.is_tiers:
        question = replace(question, profile=best_order(question))
    name, at = planner or default_planner(question), conditions_of(question.profile)
    plan = planned(question, name, at)
    if placement_out is not None:
        write_placement(placement_out, question.profile, plan.layout)
    notes = _notes_on(question, at, name, plan)
    if given.links_stay and question.profile.names != given.names:
        notes.append(
            "the file has no links_between, so the links were taken to stay in their places whoever stands at their ends"
        )
    plans = ranked(question, at, plan, explain) if explain else [plan]
    print_ranked(question, plans, at, notes, as_json=as_json)


def print_candidates(question: Question, path: Path, *, as_json: bool) -> None:
    """Rank the trainers of a file, the device alone among them, each with its best layout. PlanError if that is impossible."""
    candidates = load_candidates(path, taken=question.profile.names[:1])
    print_ranked(question, ranked_candidates(question, candidates), as_json=as_json)


def print_group(profile: Profile, members: int, *, as_json: bool) -> None:
    """Rank one device and a group of so many. PlanError if that is impossible."""
    plans = group_plans(profile, profile.rates(*profile.names[:2]), members)
    print_ranked(Question(profile), plans, as_json=as_json)


def print_placements(question: Question, path: Path, *, as_json: bool) -> None:
    """Rank the placements of a file, one a line. PlanError and ConfigError for what cannot be costed."""
    print_ranked(question, costed_placements(question, path), as_json=as_json)


def _notes_on(question: Question, at: Conditions, planner: str, plan: Plan) -> list[str]:
    """List what a reader of a plan might otherwise take for granted."""
    profile, space = question.profile, question.space
    notes = _uncalibrated(question, plan)
    if planner in (ACCURATE, BEST):
        notes += _idle(profile, plan)
    if question.is_pair and planner == ACCURATE:
        notes += _begun_with(question, at, plan)
        notes += _not_taken(question, at, plan)
    if not plan.is_proved:
        notes.append("the layouts are too many to be tried one by one; a better one may exist")
    if question.is_tiers and not space.inputs_to:
        notes.append(
            "the device alone runs the first blocks, because --inputs-to permits no trainer to have raw samples"
        )
    return notes


def _uncalibrated(question: Question, plan: Plan) -> list[str]:
    """Warn where the plan may cost accuracy that was never measured."""
    layout = plan.layout
    parts = [f"{bits} bits" for bits in sorted({bits for _, bits in layout.widths})]
    mend = ""
    if question.is_pair:  # calibration is for two workers
        parts += [f"K = {layout.staleness}"] * (layout.staleness > 0)
        mend = "; edge-agent profile --calibrate finds it out"
    if question.profile.min_bits is not None or not parts:
        return []
    return [f"nothing was calibrated: nobody has measured what {' and '.join(parts)} cost in accuracy{mend}"]


def _idle(profile: Profile, plan: Plan) -> list[str]:
    idle = [name for name in profile.names if name not in plan.layout.workers]
    if len(profile.names) == 2 or not idle:
        return []
    return [f"{', '.join(idle)} would make no step quicker, and so gets no blocks"]


def _not_taken(question: Question, at: Conditions, plan: Plan) -> list[str]:
    """Explain why `accurate` took `plan`, and not a plan that is faster once one of its rules is left out; a sentence a
    rule."""

    space = question.space

    def faster(without: Question) -> Plan | None:
        return quicker(accurate(without, at))

    def quicker(found: Plan) -> Plan | None:
        return found if found.seconds_per_step < (1.0 - LEAST_GAIN) * plan.seconds_per_step else None

    def described(found: Plan) -> str:
        where = str(found.layout) if found.layout.cuts else "training on the device alone"
        return f"{where} would take {found.seconds_per_step:.4g} s a step and was not taken"

    sentences = []
    if found := quicker(greedy(question, at)):
        sentences.append(
            f"{described(found)}: within {EXACTNESS_MARGIN:.0%} of the fastest, more bits and a smaller K come first; "
            "--planner greedy takes the fastest"
        )
    if found := faster(replace(question, from_cut=None)):
        there = replace(question, space=replace(space, cuts=(found.layout.tiles[0].stop,)))
        way_seconds = accurate(there, at).migration_seconds
        sentences.append(
            f"{described(found)}: to move the blocks there takes {way_seconds:.4g} s, which {question.horizon_steps} steps "
            "do not pay back"
        )
    if found := faster(replace(question, profile=replace(question.profile, min_bits=None))):
        sentences.append(
            f"{described(found)}: the calibration found that it costs too much accuracy, or did not try it"
        )
    may_be_alone = replace(question, space=replace(space, allow_edge_only=True))
    if not space.allow_edge_only and space.cuts is None and (found := faster(may_be_alone)):
        sentences.append(f"{described(found)}: --no-edge-only forbids it")
    return sentences


def _begun_with(question: Question, at: Conditions, plan: Plan) -> list[str]:
    """Name the deployment that a run with an engine begins with over such a link, if it is another; none where the cut
    is given."""
    begun = first_layout(question, at)
    if question.space.cuts is not None or begun == plan.layout:
        return []
    return [
        f"with engine.profile a run begins with {begun}, which bears a link that fluctuates, and goes on "
        "choosing; without an engine it keeps what it is given"
    ]
