"""Measures given placements: `python -m benchmarks.tiers run --profile T.json --placements F.jsonl [--json]`.

Each is trained by three processes in three network namespaces, and its step is put beside what the simulator and Eq. 12 say.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.tiers.measured import Measured, bench
from edge_agent.planning import load_profile
from shared.errors import PlanError
from shared.placement import document_of, parse_placement


def run(arguments: argparse.Namespace) -> None:
    """Measure the placements and print a line for each as soon as it is measured. Raises PlanError for a profile or
    placements that cannot be measured, ConfigError for a placement that may not be, and LinkError without namespaces."""
    profile = replace(load_profile(arguments.profile), samples_ahead=arguments.ahead)
    if profile.by_samples is None:
        raise PlanError(
            f"{arguments.profile}: the profile has no times by samples; measure it with `edge-agent profile --tiers`"
        )
    placements = [
        parse_placement(
            json.loads(line),
            f"{arguments.placements}: line {number}",
            len(profile),
            profile.batch_size,
            arguments.staleness,
        )
        for number, line in enumerate(arguments.placements.read_text().splitlines(), start=1)
        if line.strip()
    ]
    with tempfile.TemporaryDirectory(prefix="isthmus-") as folder, bench(Path(folder), profile) as running:
        for number, placement in enumerate(placements, start=1):
            found = running.measured(placement, running.stretches(placement, arguments.seconds))
            line = json.dumps({"placement": document_of(placement), **found.document()})
            print(line if arguments.json else described(number, found), flush=True)


def described(number: int, found: Measured) -> str:
    """Return a measurement in words."""
    phased = "" if found.eq12_error is None else f", in phases {found.eq12:.4g} s ({found.eq12_error:+.1%})"
    return (
        f"placement {number}: {found.seconds.show(1.0, 4)} s a step, simulated {found.predicted:.4g} s "
        f"({found.error:+.1%}){phased}"
    )
