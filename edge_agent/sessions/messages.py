"""The requests that open a session at a trainer, or end it there before it has begun, and the limits in the answer."""

import asyncio
import json
from contextlib import suppress

from edge_agent.config import EdgeConfig
from edge_agent.experiment.experiment import Experiment
from shared.client.trainer import TrainerClient
from shared.errors import ConfigError, IsthmusError
from shared.placement import Placement, document_of, with_worker
from shared.tensor_wire import kinds_of
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb

FAREWELL_SECONDS = 5.0
"""Longest time of ending a session. A trainer that does not hear of the end frees the session itself, later."""


async def abandon_at(client: TrainerClient, session_id: str) -> None:
    """End a session at one trainer, before it was joined, after a failure. An error of this call is dropped."""
    with suppress(IsthmusError, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            await client.close_session(session_id, pb.Fence(), resumable=False)


def check_limits(config: EdgeConfig, worker: str, answer: pb.OpenSessionResponse) -> None:
    """Refuse a trainer that takes smaller messages, or a smaller K, than the configuration wants. Raises ConfigError."""
    if answer.max_message_bytes < config.link.chunk_bytes:
        raise ConfigError(
            f"link.chunk_bytes is {config.link.chunk_bytes}; trainer {worker!r} takes at most {answer.max_message_bytes}"
        )
    largest = max(config.deployment.staleness_schedule.values)
    if answer.max_staleness < largest:
        raise ConfigError(
            f"deployment.staleness comes to {largest}; the limit of trainer {worker!r} is {answer.max_staleness} "
            "(server.max_staleness)"
        )


def placement_message(placement: Placement, worker: str) -> pb.Placement:
    """Write a placement as the message to one of its workers, or to a trainer that has no part in it."""
    document = document_of(with_worker(placement, worker))
    return pb.Placement(version=placement.version, document_json=json.dumps(document))


def opening_request(experiment: Experiment, worker: str, placement: Placement) -> pb.OpenSessionRequest:
    """Build the request that opens a session on a trainer, as this worker of a placement."""
    config, chain, inputs = experiment.config, experiment.chain, experiment.example
    return pb.OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION,
        model=pb.Model(factory=config.model.factory, kwargs_json=json.dumps(config.model.kwargs)),
        inputs=kinds_of(inputs.specs),
        input_names=inputs.names,
        public_inputs=config.privacy.public_inputs,
        length_varies=chain.lengths is not None,
        recipe_json=experiment.recipe.model_dump_json(),
        block_names=[block.name for block in chain.blocks],
        block_behaviours=[pb.BlockBehaviour(numbers=numbers) for numbers in chain.behaviours],
        placement=placement_message(placement, worker),
        worker=worker,
        backward=config.deployment.backward,
        feedback=config.deployment.feedback,
        run_id=experiment.run_id,
        group=_seat(experiment),
    )


def _seat(experiment: Experiment) -> pb.GroupSeat | None:
    """Name the seat in the group of a device that is in one."""
    group = experiment.config.group
    if (name := group.name) is None:
        return None
    return pb.GroupSeat(
        name=name,
        rank=group.rank,
        size=group.size or 0,
        steps=experiment.steps,
        frozen_digests=experiment.frozen_digests,
        may_end=experiment.config.training.early_stop is not None and experiment.evaluation is not None,
    )
