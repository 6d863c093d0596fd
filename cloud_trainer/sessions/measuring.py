"""Measurement of one step of consecutive blocks, on random features, for profiles and latency tables."""

from collections.abc import Callable

from cloud_trainer.sessions.session import Session
from shared.errors import ProtocolError
from shared.execution.failures import translate_failures
from shared.model.build import check_run
from shared.training.measure import stage_step, untouched
from shared.training.policies import policy_of_stage
from shared.training.stage import lone_stage
from shared.training.step_seconds import StepSeconds

_MAX_REPEATS = 1000


def measured_step(
    session: Session, first: int, stop: int, repeats: int, samples: int | None = None
) -> Callable[[], StepSeconds]:
    """Return a function that runs one step of blocks [first, stop) as a session does, and returns the step's seconds.

    The function undoes its changes, and raises StatusError once the session trains. repeats: number of its calls. samples: of
    a step; those of a whole batch, where it is left out. Raises ModelError for blocks out of range, ProtocolError for too many
    repeats or samples, and StatusError.
    """
    session.check_untrained()
    held, placement = session.blocks.held, session.worker.placement
    chain, device = held.chain, held.device
    check_run(first, stop, chain)  # Random features go in and come out, so any range is possible.
    if not 1 <= repeats <= _MAX_REPEATS:
        raise ProtocolError(f"{repeats} repeats were asked for; 1 to {_MAX_REPEATS} can be")
    if samples is not None and not 1 <= samples <= placement.batch_size:
        raise ProtocolError(f"steps of {samples} samples were asked for; 1 to {placement.batch_size} can be")
    policy = policy_of_stage(session.request.backward, placement.staleness, ends_model=stop == placement.blocks)
    stage = lone_stage(chain, first, stop, held.recipe, device)
    wanted = first > 0 and chain.gradients_return(first)
    step = stage_step(stage, chain.features[first], policy, input_gradient=wanted, samples=samples)
    elsewhere = [block.module for block in stage.blocks if block.index not in held.indices]

    def measured() -> StepSeconds:
        session.check_untrained()  # The agent may have joined since the previous step.
        with translate_failures("measuring blocks", device), untouched(stage.blocks):
            for module in elsewhere:
                module.to(device)
            try:
                return step()
            finally:
                for module in elsewhere:
                    module.to("cpu")

    return measured
