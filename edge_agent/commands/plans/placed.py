"""Placements of plans: a layout with the codecs that its bits ask for, to a file, and placements from one."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from edge_agent.planning import Layout, Plan, Profile, Question, costed
from shared.errors import ConfigError, PlanError
from shared.files.whole_file import write_whole
from shared.placement import Placement, document_of, parse_placement
from shared.registry import CODECS, codec_of_bits


def placed(profile: Profile, layout: Layout) -> Placement:
    """Return the placement of a layout, with the codecs of the profile, or of its family where it names none."""
    known = profile.by_samples
    like = next((name for name, spec in CODECS.items() if spec.family == profile.codec_family), "fp32")
    codecs = {route: (known and known.codec_of(bits)) or codec_of_bits(bits, like) for route, bits in layout.widths}
    return replace(layout.placement(), workers=profile.names, codecs=codecs)


def write_placement(path: Path, profile: Profile, layout: Layout) -> None:
    """Write the placement of a layout, for `placement.file`. Raises StorageError."""
    text = json.dumps(document_of(placed(profile, layout)), indent=1)
    write_whole(path, lambda scratch: scratch.write_text(text))


def costed_placements(question: Question, path: Path) -> list[Plan]:
    """Return each placement of a file, one a line, as a plan, the fastest first; of equals in the order of the file.

    PlanError for a file that cannot be read or has none, and ConfigError for a placement that may not be.
    """
    profile, found = question.profile, list[Plan]()
    for number, document in _documents(path):
        where = f"{path}: line {number}"
        placement = parse_placement(document, where, len(profile), profile.batch_size, question.space.staleness or 0)
        if set(placement.workers) - set(profile.names):
            raise PlanError(
                f"{where}: the workers are {', '.join(placement.workers)}, and those of the profile {', '.join(profile.names)}"
            )
        try:
            found.append(replace(costed(question, placement), name=f"line {number}"))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    if not found:
        raise PlanError(f"{path}: there is no placement; it needs one a line")
    return sorted(found, key=lambda plan: plan.seconds_per_step)


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
