"""The planners of three tiers that choose by formulas: Eq. 12 of paper 004, and those that it is compared with (VI.C).

In each of the latter, workers run the next blocks on whole batches, and the fewest seconds of a step with nothing beside each
other count. The profile's workers are the device, the edge server and the cloud, in this order.
"""

from collections.abc import Iterator

import numpy as np

from edge_agent.planner_names import ALL_CLOUD, ALL_DEVICE, ALL_EDGE, HIERTRAIN, JALAD, JOINTDNN, JOINTDNN_PLUS
from edge_agent.planning.cost import Conditions, simulated_seconds
from edge_agent.planning.families.question import Question
from edge_agent.planning.families.tiers.bounds import Bounds
from edge_agent.planning.families.tiers.choices import Choices
from edge_agent.planning.families.tiers.columns import Divisions, joined, layout_of
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.papers.hiertrain import hiertrain
from edge_agent.planning.plan import Plan
from edge_agent.planning.profile_operations import coded
from edge_agent.planning.space import check_staleness, check_widths
from shared.errors import PlanError

DEVICE, EDGE, CLOUD = range(3)
JALAD_BITS = 8
"""Bits of the features that the edge server sends to the cloud. Gradients come back as they are."""

BASELINES = (JOINTDNN, JOINTDNN_PLUS, JALAD, ALL_DEVICE, ALL_EDGE, ALL_CLOUD)


def baseline(planner: str, by: Bounds, choices: Choices) -> Divisions:
    """Return the one division that a planner chooses. PlanError where it may not send raw samples, or lacks a codec."""
    every = joined(list(_candidates(planner, choices.blocks, choices.batch_size)))
    permitted = every.take(np.flatnonzero(choices.permitted(every)))
    if planner == JALAD and JALAD_BITS not in by.widths:
        raise PlanError(f"{JALAD} sends features in {JALAD_BITS} bits, and the profile has no such codec; add it")
    if not permitted.rows:
        raise PlanError(
            f"{planner} sends raw samples to a trainer that may not have them, or has all blocks where they may not be; permit "
            "it with --inputs-to, which stands for privacy.inputs_to and the trainer's server.accept_inputs"
        )
    return permitted.take(np.array([int(np.argmin(by.seconds(permitted)))]))


def baselines(by: Bounds, choices: Choices) -> Iterator[tuple[str, Divisions]]:
    """Yield what each planner chooses that may choose anything, within the widths of these choices."""
    for planner in BASELINES:
        if not {FLOAT32_BITS, JALAD_BITS if planner == JALAD else FLOAT32_BITS} <= {*choices.widths}:
            continue
        try:
            yield planner, baseline(planner, by, choices)
        except PlanError:
            continue


def _candidates(planner: str, blocks: int, batch_size: int) -> Iterator[Divisions]:
    on_device, on_edge, on_cloud = (
        _stack(worker, blocks if worker == DEVICE else 0) for worker in (DEVICE, EDGE, CLOUD)
    )
    cuts = range(blocks)
    match planner:
        case "all-device":
            yield on_device
        case "all-edge":
            yield on_edge
        case "all-cloud":
            yield on_cloud
        case "jointdnn":
            yield from (on_device, *(_stack(CLOUD, cut) for cut in cuts))
        case "jointdnn+":
            yield on_device
            for cut in cuts:
                yield from (_stack(EDGE, cut), _stack(CLOUD, cut))
                yield from (_stack(CLOUD, cut, end, batch_size) for end in range(cut + 1, blocks))
        case "jalad":
            yield from (on_edge, on_cloud)
            for end in range(1, blocks):
                coded = _stack(CLOUD, 0, end, batch_size)
                coded.widths[0, EDGE, CLOUD] = JALAD_BITS
                yield coded


def _stack(last: int, before: int, end: int | None = None, samples: int = 0) -> Divisions:
    """Return the device on [0, before), the edge server from there to `end`, on all samples or on none, and one worker on the
    rest."""
    short, long = (DEVICE, EDGE) if last == CLOUD else (DEVICE, CLOUD) if last == EDGE else (EDGE, CLOUD)
    middle = before if end is None else end
    columns = (last, short, long, before, before, middle, 0, samples)
    return Divisions._make((*(np.array([column]) for column in columns), np.full((1, 3, 3), FLOAT32_BITS)))


def plan_by_phases(question: Question, at: Conditions) -> Plan:
    """Choose the division of the fewest seconds in phases (Eq. 12), with K = 0 where it is left open."""
    bounds, choices = _weighed(question, at)
    phased = hiertrain(bounds, choices)
    if phased is None:
        raise PlanError(
            f"{HIERTRAIN} finds no division that may be chosen; permit raw samples to a trainer, or the device alone"
        )
    chosen, _, evaluated = phased
    return _plan_of(question, at, chosen, evaluated)


def plan_baseline(name: str, question: Question, at: Conditions) -> Plan:
    """Choose what one of the planners chooses that divisions are compared with, with K = 0 where it is left open."""
    return _plan_of(question, at, baseline(name, *_weighed(question, at)), 1)


def _weighed(question: Question, at: Conditions) -> tuple[Bounds, Choices]:
    check_staleness(question.space.staleness)
    check_widths(question.space.bits)
    return Bounds(question.profile, at, question.space.staleness or 0), Choices(question)


def _plan_of(question: Question, at: Conditions, chosen: Divisions, evaluated: int) -> Plan:
    profile = question.profile
    layout = layout_of(chosen, profile.names, len(profile), profile.batch_size, question.space.staleness or 0)
    return Plan(layout, simulated_seconds(profile, coded(profile, layout), at), evaluated=evaluated)
