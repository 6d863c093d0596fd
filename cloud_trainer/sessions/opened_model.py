"""The builder of a session's model: it checks every part of an agent's request before that part costs memory."""

from collections.abc import Sequence
from typing import NamedTuple

import grpc
import structlog
from pydantic import ValidationError
from torch import nn

from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import SessionMemory
from shared.bounds import MAX_DIMENSIONS, is_session_id
from shared.config import first_complaint
from shared.errors import ConfigError, ProtocolError
from shared.imported import changed
from shared.model.behaviour import first_difference
from shared.model.build import build_checked_chain, parse_kwargs
from shared.model.chain import Chain
from shared.model.footprint import estimate_training_bytes, state_bytes, training_bytes
from shared.model.inputs import InputSpecs
from shared.model.spec import TensorSpec
from shared.tensor_wire import torch_dtype
from shared.training import block_state
from shared.training.losses import LossHead, check_counted
from shared.training.metrics import Metrics, load_metrics
from shared.training.optimizers import check_optimizer, update_memory
from shared.training.precision import check_weights, computing, with_types
from shared.training.recipe import Recipe
from shared.training.schedule import check_schedule
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.tensor_pb2 import TensorHeader
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest

_log = structlog.get_logger(__name__)
_MAX_RECIPE_CHARACTERS = 64 * 1024
MOST_INPUTS = 32
"""Most tensors that a model takes."""
_MOST_NAME_CHARACTERS = 64
MAX_REQUEST_BYTES = 256 * 1024
"""Largest size of all that opens a session: its recipe, its model's arguments and the names of a thousand blocks. All
of it stays in memory as long as the session."""


def check_request(request: OpenSessionRequest) -> None:
    """Refuse a request that is too large to be kept, or whose name of a run is invalid. Raises ProtocolError."""
    if request.run_id and not is_session_id(request.run_id):
        raise ProtocolError("what opens the session names its run otherwise than with 32 hexadecimal digits")
    if (size := request.ByteSize()) > MAX_REQUEST_BYTES:
        raise ProtocolError(f"what opens the session has {size} bytes; it may have {MAX_REQUEST_BYTES}")


def run_of(request: OpenSessionRequest, session_id: str) -> str:
    """Return the run to which the session belongs."""
    return request.run_id or session_id


class OpenedModel(NamedTuple):
    """The model that an edge requested for a session, and its training."""

    chain: Chain
    recipe: Recipe
    head: LossHead
    metrics: Metrics | None
    memory: SessionMemory
    activation_bytes: int
    """Bytes that autograd keeps of a batch, over all blocks."""


def open_model(request: OpenSessionRequest, allowed: Sequence[str], limits: Limits) -> OpenedModel:
    """Build the model of a session, and check every part of the request except the placement.

    Raises ModelError, ConfigError, ProtocolError or StatusError with the sentence that the agent's user will read.
    """
    recipe = _recipe_of(request)
    head = LossHead(recipe.loss, allowed)
    check_counted(recipe, allowed)
    check_schedule(recipe, allowed)
    check_optimizer(recipe.optimizer, allowed)
    metrics = load_metrics(recipe, allowed, limits.metric_bytes, limits.of_a_build)
    example = inputs_of(request.inputs, request.input_names, limits)
    if request.public_inputs and not set(request.public_inputs) < set(example.names):
        raise ProtocolError(
            "public inputs came that are none of the batch, or all of it; they must be some of its names"
        )
    kwargs = parse_kwargs(request.model.kwargs_json)
    updates = update_memory(recipe)
    factory, build_limits = request.model.factory, limits.of_a_build
    estimate = estimate_training_bytes(
        factory, kwargs, example, updates, learning=recipe.learning, allowed=allowed, limits=build_limits
    )
    limits.check_memory(estimate or 0)

    def check_built(module: nn.Module) -> None:
        nonlocal estimate
        if estimate is None:
            limits.check_memory(state_bytes(module, updates))
            estimate = training_bytes(module, example, updates)
            limits.check_memory(estimate)

    with computing(recipe.base_precision):
        chain = build_checked_chain(
            factory,
            kwargs,
            recipe.seed,
            example.example(),
            learning=recipe.learning,
            output=recipe.output,
            allowed=allowed,
            inputs_may_cross=limits.accept_inputs,
            public_inputs=tuple(request.public_inputs),
            length_varies=request.length_varies,
            limits=build_limits,
            check=check_built,
        )
    assert estimate is not None
    check_weights(chain.module, recipe)
    chain = with_types(chain, recipe.other_precisions, example.example())
    averaged = recipe.ema is not None
    block_bytes = [
        block_state.max_serialized_bytes(block, recipe.optimizer_of_states, averaged=averaged) for block in chain.blocks
    ]
    frozen_bytes = [block_state.max_frozen_bytes(block) for block in chain.blocks if block_state.frozen(block)]
    metric_bytes = limits.metric_bytes if recipe.metrics else 0
    memory = SessionMemory(limits, estimate, block_bytes, sum(frozen_bytes), metric_bytes)
    names = [block.name for block in chain.blocks]
    remedy = _remedy()
    if names != list(request.block_names):
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the edge's model is a chain of {len(request.block_names)} blocks and the trainer's of {len(names)}, or their "
            f"names differ: both sides must import the same {request.model.factory!r}{remedy}",
        )
    if len(request.block_behaviours) not in (0, len(names)):
        raise ProtocolError(f"behaviours of {len(request.block_behaviours)} blocks came; the model has {len(names)}")
    edge_behaviours = [tuple(behaviour.numbers) for behaviour in request.block_behaviours]
    if edge_behaviours and (index := first_difference(chain.behaviours, edge_behaviours)) is not None:
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"block {names[index]!r} of {factory!r} computes something else on the trainer than on the edge, though it has the "
            f"same name: both sides must have the same version of the model's code{remedy}",
        )
    return OpenedModel(chain, recipe, head, metrics, memory, estimate - state_bytes(chain.module, updates))


def _remedy() -> str:
    """Warn of files that have changed since this process imported them; returns what ends a refusal then."""
    files = changed()
    for each in files:
        _log.warning(
            "a file has changed since it was imported; sessions go on with what was imported until the trainer is restarted",
            file=str(each.file),
            imported=each.imported,
            now=each.now,
        )
    return f"; the trainer {max(files, key=lambda each: each.now).told()}; restart the trainer" if files else ""


def _recipe_of(request: OpenSessionRequest) -> Recipe:
    """Read the recipe. Raises ConfigError."""
    if len(request.recipe_json) > _MAX_RECIPE_CHARACTERS:
        raise ConfigError(
            f"the recipe is {len(request.recipe_json)} characters of JSON; at most {_MAX_RECIPE_CHARACTERS} are taken"
        )
    try:
        return Recipe.model_validate_json(request.recipe_json or "{}")
    except ValidationError as cause:
        raise ConfigError(f"the recipe: {first_complaint(cause, 'as a whole')}") from cause


def inputs_of(headers: Sequence[TensorHeader], names: Sequence[str], limits: Limits) -> InputSpecs:
    """Read the shapes and types of a batch, and the names of its inputs, if they have any. Raises ProtocolError."""
    if not 1 <= len(headers) <= MOST_INPUTS:
        raise ProtocolError(f"the batch has {len(headers)} inputs; it must have 1 to {MOST_INPUTS}")
    if names and (len(names) != len(headers) or list(names) != sorted({*names}) or not all(map(_is_name, names))):
        raise ProtocolError(
            f"{len(names)} names of {len(headers)} inputs came; each input has one, in the alphabet's order"
        )
    specs = tuple(_spec_of(header, limits) for header in headers)
    if len({spec.shape[0] for spec in specs}) > 1:
        raise ProtocolError("the inputs of the batch differ in their first dimension, the number of samples")
    return InputSpecs(specs, tuple(names))


def _is_name(text: str) -> bool:
    return len(text) <= _MOST_NAME_CHARACTERS and text.isidentifier()


def _spec_of(header: TensorHeader, limits: Limits) -> TensorSpec:
    dimensions = len(header.shape)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ProtocolError(f"the example batch has {dimensions} dimensions; it must have 1 to {MAX_DIMENSIONS}")
    example = TensorSpec(tuple(header.shape), torch_dtype(header.dtype))
    if not 0 < example.bytes <= limits.tensor_bytes:
        raise ProtocolError(
            f"the example batch {example.shape} has {example.bytes} bytes; it must have 1 to {limits.tensor_bytes}"
        )
    return example
