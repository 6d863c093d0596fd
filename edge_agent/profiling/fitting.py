"""Memory of this device: for features that it keeps, and what batch and cut fit where a run was killed twice."""

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from edge_agent.experiment.experiment import Experiment, has_one_cut
from edge_agent.experiment.placement_report import crossing_bytes, memory_of
from edge_agent.profiling.memory import available_bytes
from edge_agent.sessions.kills import Kill
from edge_agent.sessions.stored_session import StoredSession
from shared.control.formatting import size
from shared.errors import ConfigError, DataError, ModelError, UnfitError
from shared.execution.recalled import kept_in_memory
from shared.placement import AGENT, Placement, StepPlan, held_blocks

_log = structlog.get_logger(__name__)
_WORKING = 1.25
"""Memory of a step by what it keeps for its backward: gradients and the results of operations come and go beside it."""
_COPIES = 3
"""Times that what crosses the link is in memory: as a tensor, in messages, and until the other side has it."""
_BESIDE_BYTES = 32 * 1024**2
"""Memory that connections, their threads and messages take once training begins."""


def warn_of_kept_features(experiment: Experiment) -> None:
    """Warn if memory will have no room for the features of which changes are sent: it is taken as they come."""
    plan = StepPlan(experiment.placement, experiment.facts)
    kept_bytes = kept_in_memory(experiment.chain, experiment.recipe, plan, AGENT)
    if kept_bytes > (free_bytes := available_bytes()):
        _log.warning(
            "the features of which changes are sent may not fit into memory, and the kernel then kills this process",
            free=size(free_bytes),
            needed=size(kept_bytes),
        )


def check_kills(experiment: Experiment, stored: StoredSession | None) -> Kill | None:
    """Return how the last process of a session was killed; None where it was not.

    Raises UnfitError, once, where it was the second one at the same step: the next would be killed there, too.
    """
    kills = [] if stored is None else stored.kills()
    if not kills or stored is None:
        return None
    last = kills[0]
    if not _is_same(kills, experiment.placement.staleness):
        _log.warning("the last process of this run was killed", step=last.steps, for_memory=last.for_memory)
        return last
    stored.forget_kills()
    by = "the kernel has killed this run twice for memory" if last.for_memory else "this run was killed twice"
    forget = f"`edge-agent forget {stored.record.session_id}`"
    raise UnfitError(f"{by} at step {last.steps}; {_what_fits(experiment)}, after {forget}, or give it more memory")


def _is_same(kills: Sequence[Kill], staleness: int) -> bool:
    """Tell whether the second process was killed where the first one was, or, where memory is short, came no further.

    staleness: by so many, and the one under way, the count of steps done may differ for the same step of this device.
    """
    if len(kills) < 2:
        return False
    last, before = kills
    further = last.steps - before.steps
    is_short = last.for_memory and before.for_memory
    return further <= staleness + 1 and (is_short or -further <= staleness + 1)


class _Need(NamedTuple):
    """Bytes of memory that training takes beside the weights, which are there already."""

    fixed: float
    """For any batch."""
    growing: float
    """With the batch."""

    @property
    def total(self) -> float:
        return self.fixed + self.growing


def _what_fits(experiment: Experiment) -> str:
    """Name the largest batch and the latest cut that fit, as a part of a sentence."""
    placement, left = experiment.placement, available_bytes()
    need = _need(experiment, placement)
    batch, fits = placement.batch_size, list[str]()
    # It was killed with the present batch: where that seems to fit, the estimate lacks something.
    fitting = min(int(batch * (left - need.fixed) / (need.growing or 1.0)), batch // 2)
    if fitting > 0:
        fits.append(f"data.batch_size = {fitting}")
    if (cut := _largest_cut(experiment, left)) is not None:
        fits.append(f"deployment.cut = {cut}")
    needs = f"a step takes about {size(round(need.total))} here, and {size(left)} are free"
    if need.total <= left:
        needs += ", so that something else may end it"
    return f"{needs}: begin again with {' or '.join(fits)}" if fits else f"{needs}: begin again with a smaller model"


def _largest_cut(experiment: Experiment, left_bytes: int) -> int | None:
    placement = experiment.placement
    if not has_one_cut(placement):
        return None
    for cut in reversed(range(1, len(held_blocks(placement, AGENT)))):
        try:
            need = _need(experiment, experiment.cut_at([cut], placement))
        except (ConfigError, DataError, ModelError):  # not a cut, or one that would show what may not be seen
            continue
        if need.total <= left_bytes:
            return cut
    return None


def _need(experiment: Experiment, placement: Placement) -> _Need:
    plan = StepPlan(placement, experiment.facts)
    memory = memory_of(experiment, plan, AGENT)
    held = memory.activations + memory.waiting + memory.ahead
    crossing = crossing_bytes(experiment, plan, AGENT)
    fixed = memory.gradients + memory.optimizer + memory.kept + _BESIDE_BYTES
    return _Need(fixed, _WORKING * held + _COPIES * crossing)
