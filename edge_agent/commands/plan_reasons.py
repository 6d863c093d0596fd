"""What a plan does not say by itself: what it costs that nobody measured, and why something that looks faster was not taken."""

from dataclasses import replace

from shared.planning import FLOAT32_BITS, Plan, Profile, Rates, SearchSpace, greedy

LEAST_GAIN = 0.001
"""Part of the time per step below which nothing counts as faster."""


def uncalibrated(profile: Profile, plan: Plan) -> list[str]:
    """A warning where the plan may cost accuracy that was never measured."""
    chosen = plan.deployment
    parts = [f"{chosen.bits} bits"] * (chosen.bits < FLOAT32_BITS) + [f"K = {chosen.staleness}"] * (
        chosen.staleness > 0
    )
    if profile.min_bits is not None or not parts:
        return []
    return [
        f"nothing was calibrated: nobody has measured what {' and '.join(parts)} cost in accuracy; edge-agent profile "
        "--calibrate finds it out"
    ]


def not_taken(
    profile: Profile, rates: Rates, space: SearchSpace, horizon_steps: int, from_cut: int | None, plan: Plan
) -> list[str]:
    """Why the search took `plan`, and not what takes less time a step once one of its rules is left out; a sentence a rule."""

    def faster(searched: Profile = profile, within: SearchSpace = space, start: int | None = from_cut) -> Plan | None:
        found = greedy(searched, rates, within, horizon_steps, start)
        return found if found.seconds_per_step < (1.0 - LEAST_GAIN) * plan.seconds_per_step else None

    def described(found: Plan) -> str:
        where = "training on the device alone" if found.deployment.cut == len(profile) else str(found.deployment)
        return f"{where} would take {found.seconds_per_step:.4g} s a step and was not taken"

    sentences = []
    if found := faster(start=None):
        way_seconds = greedy(
            profile, rates, replace(space, cut=found.deployment.cut), horizon_steps, from_cut
        ).migration_seconds
        sentences.append(
            f"{described(found)}: to move the blocks there takes {way_seconds:.4g} s, which {horizon_steps} steps do not "
            "pay back"
        )
    if found := faster(replace(profile, min_bits=None)):
        sentences.append(
            f"{described(found)}: the calibration found that it costs too much accuracy, or did not try it"
        )
    may_be_alone = replace(space, allow_edge_only=True)
    if not space.allow_edge_only and space.cut is None and (found := faster(within=may_be_alone)):
        sentences.append(f"{described(found)}: --no-edge-only forbids it")
    return sentences
