"""Orders of an edge to train for its calibration: every part of one is judged before a process is started for it."""

import math
from typing import Annotated

import grpc
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from cloud_trainer.config import StandInConfig, TrainerConfig
from cloud_trainer.sessions.fencing import check_version
from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.opened_model import inputs_of
from shared.codec import FeedbackMode
from shared.config import OneOf, Section, first_complaint
from shared.errors import ConfigError, ProtocolError
from shared.registry import POLICIES
from shared.training.recipe import Recipe
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1.trainer_pb2 import TrainCopyRequest

_MAX_TEXT_BYTES = 64 * 1024
"""The longest recipe, and the longest arguments of a model."""


class CopyOrder(Section):
    """One copy to train, and the bounds that its process keeps to."""

    factory: str
    kwargs_json: str
    recipe: Recipe
    inputs: tuple[tuple[tuple[PositiveInt, ...], str], ...]
    """The shape of each input of a batch, and its type by torch's name."""
    input_names: tuple[str, ...]
    """The parameters that take them; none where they are taken by their places."""
    cut: PositiveInt
    staleness: NonNegativeInt
    codec: str
    backward: Annotated[str, OneOf(POLICIES)]
    feedback: FeedbackMode
    epochs: PositiveFloat
    timing_only: bool
    train: StandInConfig
    test: StandInConfig
    allowed: tuple[str, ...]
    """Names that models may have (models.allowed)."""
    limits: Limits
    """Limits on the resources of its model, as for a session."""
    device: str
    threads: NonNegativeInt
    """Threads of torch; 0 leaves the number to torch."""


def order_of(request: TrainCopyRequest, config: TrainerConfig, limits: Limits, device: str) -> CopyOrder:
    """The order that a request is. Raises ConfigError, ProtocolError or StatusError for one that is not taken."""
    check_version(request.protocol_version)
    bounds = config.calibration
    if bounds.train is None or bounds.test is None:
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "this trainer's operator has put no data there for calibrations ([calibration] train and test)",
        )
    texts = {"the recipe": request.recipe_json, "the model's arguments": request.model.kwargs_json}
    for what, text in texts.items():
        if len(text) > _MAX_TEXT_BYTES:
            raise ProtocolError(f"{what} has {len(text)} characters; it may have {_MAX_TEXT_BYTES}")
    if not math.isfinite(request.epochs) or not 0 < request.epochs <= bounds.max_epochs:
        raise ProtocolError(
            f"a copy is to be trained for {request.epochs:g} epochs; this trainer's limit is {bounds.max_epochs:g} "
            "(calibration.max_epochs)"
        )
    limits.check_staleness(request.staleness, [request.codec])
    example = inputs_of(request.inputs, request.input_names, limits)
    try:
        return CopyOrder.model_validate(
            {
                "factory": request.model.factory,
                "kwargs_json": request.model.kwargs_json,
                "recipe": Recipe.model_validate_json(request.recipe_json or "{}"),
                "inputs": tuple((spec.shape, str(spec.dtype).removeprefix("torch.")) for spec in example.specs),
                "input_names": example.names,
                "cut": request.cut,
                "staleness": request.staleness,
                "codec": request.codec,
                "backward": request.backward,
                "feedback": FeedbackMode(request.feedback),
                "epochs": request.epochs,
                "timing_only": request.timing_only,
                "train": bounds.train,
                "test": bounds.test,
                "allowed": config.models.allowed,
                "limits": limits,
                "device": device,
                "threads": config.compute.threads,
            }
        )
    except ValidationError as cause:
        raise ConfigError(f"the copy: {first_complaint(cause, 'as a whole')}") from cause
    except ValueError as cause:  # FeedbackMode's own sentence
        raise ConfigError(f"the copy: {cause}") from cause
