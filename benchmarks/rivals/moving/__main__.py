"""A device that moves among trainers, simulated under each policy:

python -m benchmarks.rivals.moving --profile P.json --sites S.csv --path P.csv --uplink 100mbit --downlink 400mbit
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.rivals.moving import Backbone, MoveRun, World, load_path, load_sites, simulate_moves
from edge_agent.commands.plans.plan_options import (
    BITS_TEXT,
    AllowEdgeOnly,
    AsJson,
    Bits,
    ProfileFile,
    Staleness,
    parse_bits,
    read_profile,
)
from edge_agent.planning import Question, SearchSpace, parse_rate, parse_seconds
from edge_agent.planning.families.pair import best_pairs
from shared.commands.entry import run_command

NAME = "benchmarks.rivals.moving"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def move(
    profile: ProfileFile,
    sites: Annotated[
        Path,
        typer.Option(
            help="CSV of trainers at places: SITE_ID, LATITUDE, LONGITUDE, and if known radius_m, round_trip_ms, "
            "cloud_factor, uplink_mbit, downlink_mbit."
        ),
    ],
    path: Annotated[Path, typer.Option(help="CSV of the device's way among them: second, latitude, longitude.")],
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy to follow; may be repeated. All of them when absent.")
    ] = None,
    uplink: Annotated[
        str | None,
        typer.Option(help="Rate up to the cloud and to sites without their own; --downlink is the rate down."),
    ] = None,
    downlink: Annotated[str | None, typer.Option(help="Rate down from them, as 50mbit.")] = None,
    between: Annotated[str, typer.Option(help="Rate from trainer to trainer.")] = "1gbit",
    cloud_round_trip: Annotated[str, typer.Option(help="Time from the device to the cloud and back.")] = "135ms",
    relay: Annotated[bool, typer.Option("--relay", help="Reach a site out of reach through one in reach.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of what the file of sites leaves open, and of chance.", min=0)] = 0,
    staleness: Staleness = None,
    bits: Bits = BITS_TEXT,
    allow_edge_only: AllowEdgeOnly = True,
    as_json: AsJson = False,
) -> None:
    """Follow a device's way under policies of choosing a trainer, and print the time of 100 steps for each."""
    network = Backbone(
        None if uplink is None else parse_rate(uplink, "--uplink"),
        None if downlink is None else parse_rate(downlink, "--downlink"),
        parse_rate(between, "--between"),
        parse_seconds(cloud_round_trip, "--cloud-round-trip"),
        relay,
    )
    space = SearchSpace(parse_bits(bits), staleness, allow_edge_only=allow_edge_only)
    pairs = best_pairs(Question(read_profile(profile), space))
    world = World(pairs, load_sites(sites, seed), load_path(path), network)
    runs = simulate_moves(world, policy or (), seed)
    if as_json:
        typer.echo(json.dumps([move_fields(run, world.seconds) for run in runs]))
    else:
        typer.echo(describe_moves(runs, world.seconds))


def move_fields(run: MoveRun, seconds: float) -> Mapping[str, object]:
    """Return a run's JSON object; the time of steps that were never done is null."""
    return {
        "policy": run.policy,
        "steps": run.steps,
        "seconds_per_100_steps": 100.0 * seconds / run.steps if run.steps else None,
        "handovers": [
            {
                "second": each.second,
                "from": each.origin,
                "to": each.target,
                "bytes": each.moved_bytes,
                "paused_seconds": each.paused_seconds,
            }
            for each in run.handovers
        ],
        "spans": [
            {
                "begin": span.begin,
                "end": span.end,
                "trainer": span.trainer,
                "cut": span.cut,
                "bits": span.bits,
                "staleness": span.staleness,
                "steps": span.steps,
            }
            for span in run.spans
        ],
        "probe_bytes": run.probe_bytes,
    }


def describe_moves(runs: Sequence[MoveRun], seconds: float) -> str:
    """Return a table: policy, seconds per 100 steps, handovers and the seconds that they took."""
    lines = [f"{'policy':<12} {'s/100 steps':>12} {'handovers':>10} {'paused, s':>10}"]
    for run in runs:
        pace = 100.0 * seconds / run.steps if run.steps else float("inf")
        paused = sum(each.paused_seconds for each in run.handovers)
        lines.append(f"{run.policy:<12} {pace:>12.2f} {len(run.handovers):>10} {paused:>10.1f}")
    return "\n".join(lines)


def main() -> None:
    """Run the command; ends the process with its exit code."""
    run_command(NAME, app)


if __name__ == "__main__":
    main()
