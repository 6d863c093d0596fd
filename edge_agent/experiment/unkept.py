"""State of a model that no file keeps: named before a run begins.

Parameters and buffers move with their blocks and are in every checkpoint. The file of the results has what the module's
own state dict has, so a buffer that is registered with `persistent=False` is not in it. A number in a plain attribute
is kept nowhere: it stays behind where a block moves, and begins again where a run is resumed.
"""

from itertools import chain
from typing import NamedTuple

import structlog
import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge_agent.experiment.trial_state import plain_numbers
from edge_agent.experiment.workload import Workload
from shared.errors import ModelError
from shared.foreign import described, foreign_code
from shared.model.build import build_model
from shared.model.inputs import features_of_inputs
from shared.model.random_state import random_state
from shared.model.snapshot import same_bits, unchanged

_log = structlog.get_logger(__name__)


class Unkept(NamedTuple):
    """Lost state, by names in the whole module."""

    buffers: list[str]
    """Buffers that are not in the state dict, and that training changes or another seed draws otherwise."""
    attributes: list[str]
    """The numbers in plain attributes that training changes."""


def warn_of_unkept(workload: Workload) -> None:
    """Log the state that no file keeps, if there is any."""
    found = unkept(workload)
    if found.buffers:
        _log.warning(
            "model.safetensors will not hold all that the model computes with: these buffers are not in its state dict; "
            "register them with persistent=True",
            buffers=found.buffers,
        )
    if found.attributes:
        _log.warning(
            "the model counts in plain attributes, which move with no block and are in no checkpoint, and which K > 0 counts "
            "twice; keep such numbers in buffers",
            attributes=found.attributes,
        )


def unkept(workload: Workload) -> Unkept:
    """Run the model once more, forward, in train mode, and compare; it is afterwards as it was."""
    module = workload.chain.module
    buffers, numbers = _unsaved(module), plain_numbers(module)
    # Some blocks may be on a GPU already, and the others are not.
    here = _copies_from_elsewhere(module)
    with unchanged(module), torch.no_grad(), random_state("unkept"):
        module.train()
        before = plain_numbers(module)
        inputs, names = features_of_inputs(workload.example.example()), workload.example.names
        with foreign_code(_fails_on_made_up):
            functional_call(module, here, () if names else inputs, dict(zip(names, inputs, strict=False)))
        trained, counted = {**_unsaved(module), **here}, plain_numbers(module)
    drawn = buffers
    if buffers:
        model, seed = workload.config.model, workload.config.training.seed
        drawn = _unsaved(build_model(model.factory, model.kwargs, seed + 1))
    return Unkept(
        [
            name
            for name, value in buffers.items()
            if not (_is(value, trained.get(name)) and _is(value, drawn.get(name)))
        ],
        [name for name in numbers if counted.get(name) != before.get(name)],
    )


def _fails_on_made_up(cause: BaseException) -> ModelError:
    return ModelError(
        f"the model fails on made-up inputs of the kind of the data's, by which both sides compare it: {described(cause)}; "
        "integers are 0 or 1 there, so a length, say, is to be taken as lengths.clamp(min=1)"
    )


def _copies_from_elsewhere(module: nn.Module) -> dict[str, Tensor]:
    """Copy the parameters and buffers that are not in this machine's memory into it, by name."""
    tensors = chain(module.named_parameters(), module.named_buffers())
    return {name: value.detach().cpu() for name, value in tensors if value.device.type != "cpu"}


def _unsaved(module: nn.Module) -> dict[str, Tensor]:
    """A copy of every buffer that the state dict leaves out, by name."""
    saved = module.state_dict().keys()
    return {name: value.detach().clone() for name, value in module.named_buffers() if name not in saved}


def _is(value: Tensor, other: Tensor | None) -> bool:
    return other is not None and same_bits(value, other.to(value.device))
