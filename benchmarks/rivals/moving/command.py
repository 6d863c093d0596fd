"""Simulation of a device that moves among trainers, under each policy, as `edge-agent simulate --sites` prints it."""

import json
from collections.abc import Mapping, Sequence

import typer

from benchmarks.rivals.moving import Backbone, MoveRun, World, load_path, load_sites, simulate_moves
from edge_agent.commands.simulate import MoveOptions
from edge_agent.planning import Profile, Question, SearchSpace, parse_rate, parse_seconds
from edge_agent.planning.choice import CandidateCosts
from shared.errors import PlanError


def print_moves(profile: Profile, space: SearchSpace, options: MoveOptions, *, as_json: bool) -> None:
    """Simulate, and print all runs as JSON or as a table. PlanError for what cannot be simulated."""
    if options.seed < 0:
        raise PlanError(f"--seed is {options.seed}; it must be 0 or more")
    network = Backbone(
        None if options.uplink is None else parse_rate(options.uplink, "--uplink"),
        None if options.downlink is None else parse_rate(options.downlink, "--downlink"),
        parse_rate(options.between, "--between"),
        parse_seconds(options.cloud_round_trip, "--cloud-round-trip"),
        options.relay,
    )
    sites, path = load_sites(options.sites, options.seed), load_path(options.path)
    world = World(CandidateCosts(Question(profile, space)), sites, path, network)
    runs = simulate_moves(world, options.policies, options.seed)
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
