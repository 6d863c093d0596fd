"""`edge-agent plan` of three tiers: what a planner chooses, or placements from a file, on the command line."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from edge_agent.planner_names import BEST, TIER_PLANNER_NAMES
from edge_agent.planning import Profile, Question, SearchSpace, TierPlan, TierPlanner, with_batch_size
from shared.errors import ConfigError, PlanError
from shared.files.whole_file import write_whole
from shared.placement import document_of, parse_placement


def tiers_question(profile: Profile, space: SearchSpace, batch_size: int | None, inputs_to: Sequence[str]) -> Question:
    """Return the question that the options ask. PlanError for a trainer that the profile lacks, and for an empty batch."""
    for name in inputs_to:
        if name not in profile.names[1:]:
            raise PlanError(
                f"--inputs-to names {name!r}; the trainers of the profile are {', '.join(profile.names[1:])}"
            )
    if batch_size is not None:
        profile = with_batch_size(profile, batch_size)
    return Question(profile, space)


def print_tiers_plan(question: Question, planner: str, placement_out: Path | None, *, as_json: bool) -> None:
    """Plan and print, and write the placement to a file. PlanError for what cannot be planned, and StorageError."""
    if planner not in TIER_PLANNER_NAMES:
        raise PlanError(
            f"--planner is {planner}, which is for two workers; the planners of three tiers are "
            f"{', '.join(TIER_PLANNER_NAMES)}"
        )
    found = TierPlanner(question).plan(planner)
    if placement_out is not None:
        text = json.dumps(document_of(found.placement), indent=1)
        write_whole(placement_out, lambda scratch: scratch.write_text(text))
    notes = _notes(question, planner, found)
    if as_json:
        typer.echo(json.dumps(fields(found) | {"planner": planner, "evaluated": found.evaluated, "notes": notes}))
    else:
        typer.echo("\n".join([*described(found), *(f"  note: {note}" for note in notes)]))


def print_placements(question: Question, path: Path, *, as_json: bool) -> None:
    """Print the costs of each placement in a file, one a line. PlanError for a file that cannot be read, and ConfigError for a
    placement that may not be."""
    planner = TierPlanner(question)
    for number, document in _documents(path):
        where, profile = f"{path}: line {number}", question.profile
        staleness = question.space.staleness or 0
        placement = parse_placement(document, where, len(profile), profile.batch_size, staleness)
        if set(placement.workers) - set(profile.names):
            raise PlanError(
                f"{where}: the workers are {', '.join(placement.workers)}, and those of the profile {', '.join(profile.names)}"
            )
        try:
            found = planner.cost(placement)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        if as_json:
            typer.echo(json.dumps(fields(found)))
        else:
            first, *rest = described(found)
            typer.echo("\n".join([f"line {number}: {first}", *rest]))


def _documents(path: Path) -> Iterator[tuple[int, object]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the placements in {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise PlanError(f"{path}: line {number} is no JSON: {error}") from error


def fields(found: TierPlan) -> dict[str, object]:
    """Return a plan as its JSON object."""
    division = found.division
    return {
        "roles": division and division.roles,
        "before": division and division.before,
        "m": division and {"s": division.short_blocks, "l": division.long_blocks},
        "samples": division and division.samples(found.placement.batch_size),
        "placement": document_of(found.placement),
        "seconds_per_step": found.seconds_per_step,
        "eq12_seconds": found.eq12_seconds,
        "worker_seconds": dict(found.worker_seconds),
        "link_seconds": [
            {"between": list(link), "up": up, "down": down} for link, (up, down) in found.link_seconds.items()
        ],
    }


def described(found: TierPlan) -> list[str]:
    """Return a plan in words: roles, seconds, and a line for each tile and link."""
    placement, division = found.placement, found.division
    roles = "no division among three roles"
    if division is not None:
        roles = ", ".join(f"{role} {worker}" for role, worker in division.roles.items())
    phased = "" if found.eq12_seconds is None else f", {found.eq12_seconds:.4g} s in phases"
    lines = [f"{roles}, staleness {placement.staleness}", f"  {found.seconds_per_step:.4g} s a step{phased}"]
    for tile in placement.tiles:
        lines.append(f"  {tile.worker}: blocks [{tile.first}, {tile.stop}) on samples {tile.rows}")
    lines += [f"  {worker} works {seconds:.4g} s" for worker, seconds in found.worker_seconds.items()]
    for (near, far), (up, down) in found.link_seconds.items():
        if up or down:
            lines.append(f"  {near} to {far} {up:.4g} s, back {down:.4g} s")
    lines += [f"  {route.sender} to {route.receiver}: features by {codec}" for route, codec in placement.codecs.items()]
    return lines


def _notes(question: Question, planner: str, found: TierPlan) -> list[str]:
    """List what a reader might otherwise take for granted."""
    notes = []
    if planner == BEST and not found.proved:
        notes.append("the divisions are too many to be tried one by one; a better one may exist")
    if not question.space.inputs_to:
        notes.append(
            "the device alone runs the first blocks, because --inputs-to permits no trainer to have raw samples"
        )
    if found.placement.codecs and question.profile.min_bits is None:
        notes.append("nothing was calibrated: nobody has measured what so few bits cost in accuracy")
    return notes
