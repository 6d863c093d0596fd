"""The answers of `edge-agent plan`: the best layout and those after it, or the ranking of trainers, groups or placements."""

from dataclasses import replace
from pathlib import Path

from edge_agent.commands.plans.notes import notes_on
from edge_agent.commands.plans.placed import costed_placements, write_placement
from edge_agent.commands.plans.printing import print_ranked
from edge_agent.planning import Profile, Question, best_order, conditions_of, ranked
from edge_agent.planning.candidates import load_candidates, ranked_candidates
from edge_agent.planning.group_choice import group_plans
from edge_agent.planning.planners.registry import default_planner, planned
from shared.errors import PlanError


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
    notes = notes_on(question, at, name, plan)
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
