"""The requests that open a session at a trainer, or end it there before it has begun."""

import asyncio
import json
from contextlib import suppress

from edge_agent.experiment.building import Experiment
from shared.client.trainer import TrainerClient
from shared.errors import IsthmusError
from shared.placement import Placement, document_of
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


def placement_message(placement: Placement) -> pb.Placement:
    """Write a placement as its message."""
    return pb.Placement(version=placement.version, document_json=json.dumps(document_of(placement)))


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
        placement=placement_message(placement),
        worker=worker,
        backward=config.deployment.backward,
        feedback=config.deployment.feedback,
        run_id=experiment.run_id,
    )
