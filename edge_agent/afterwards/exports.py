"""Files of a trained model for other programs, none of which takes its place before it computes as the model does."""

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from edge_agent.afterwards.trained import outputs_of, samples_of
from edge_agent.experiment.workload import Workload
from shared.errors import ConfigError, DifferentError, ModelError
from shared.files.whole_file import write_whole
from shared.foreign import foreign_code
from shared.model.features import Features
from shared.model.inputs import Inputs, features_of_inputs, with_length

Computes = Callable[[Inputs], Features]
"""An export that was read again: its outputs for a batch."""
TOLERANCE = 1e-5
"""The distance that a number may have from the model's, absolute and relative, where other programs order sums otherwise."""
_LACKS = re.compile(r"implementation for (\w+)")
"""The operation in the sentence of onnxruntime about one that it does not have."""
_CONSTANT = re.compile(r"size\(\)\[(\d)\] as dynamic but your code specialized it to be a constant \((\d+)\)")
"""The dimension and the number in the sentence of torch about a size that the model makes a constant of."""
_ONNX = ("onnx", "onnxscript", "onnxruntime")


def export(workload: Workload, kind: str, file: Path) -> int:
    """Write an export of the model, and compare it with the model on a few batches; returns how many samples these have.

    kind: one of `KINDS`. One batch has one sample, because an export takes any number, and where lengths vary
    (`data.longest`) some have other lengths. Programs compute in the precision of the weights, so the model then does, too,
    whatever `training.precision` is. Raises DifferentError for other outputs, ModelError for a model that cannot be exported
    so, and ConfigError where a package is missing; then nothing is written.
    """
    if kind == "onnx" and (missing := [name for name in _ONNX if find_spec(name) is None]):
        raise ConfigError(f"an export to onnx needs {missing[0]}; install it with: pip install 'isthmus[onnx]'")
    with closing(samples_of(workload).iterate()) as batches:
        whole = next(batches).inputs
    compared = [whole, _map(whole, lambda tensor: tensor[:1])]
    if (longest := workload.config.data.longest) is not None:
        compared += [whole := with_length(whole, longest), with_length(whole, longest // 2)]
    recipe = workload.recipe if kind == _STATE else workload.recipe.model_copy(update={"precision": "fp32"})

    def failure(cause: BaseException) -> BaseException:
        ours = isinstance(cause, ModelError | DifferentError | OSError)
        return cause if ours else ModelError(f"the model cannot be exported to {kind}: {_sentence(cause)}")

    def write(place: Path) -> None:
        with foreign_code(failure), _quiet():
            computes, tolerance = KINDS[kind](workload, whole, place), 0.0 if kind == _STATE else TOLERANCE
            for inputs in compared:
                expected = outputs_of(workload.chain, recipe, inputs)
                _compare(kind, expected, computes(inputs), tolerance)

    write_whole(file, write)
    return sum(features_of_inputs(inputs)[0].shape[0] for inputs in compared)


def _state_dict(workload: Workload, _: Inputs, place: Path) -> Computes:
    with place.open("wb") as file:
        torch.save(workload.chain.module.state_dict(), file)
    again = workload.built_again()
    again.module.load_state_dict(torch.load(place, weights_only=True))
    again.module.eval()
    return lambda inputs: outputs_of(again, workload.recipe, inputs)


def _torch_export(workload: Workload, inputs: Inputs, place: Path) -> Computes:
    data = io.BytesIO()  # of a path, torch wants another ending
    torch.export.save(_program(workload, inputs), data)
    place.write_bytes(data.getbuffer())
    data.seek(0)
    again = torch.export.load(data).module()

    def computes(given: Inputs) -> Features:
        found = again(**given) if isinstance(given, dict) else again(*features_of_inputs(given))
        return found if isinstance(found, tuple) else (found,)

    return computes


def _onnx(workload: Workload, inputs: Inputs, place: Path) -> Computes:
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as LacksError

    written = torch.onnx.export(_program(workload, inputs), dynamo=True, verbose=False)
    assert written is not None, "a program is returned where no file is named"
    written.save(place, external_data=False)
    try:
        session = onnxruntime.InferenceSession(place.read_bytes(), providers=["CPUExecutionProvider"])
    except LacksError as cause:
        lacks = _LACKS.search(str(cause))
        module = workload.chain.module
        tensors = (*module.parameters(), *module.buffers(), *features_of_inputs(inputs))
        types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
        raise ModelError(
            f"the model cannot be exported to onnx: onnxruntime has no {lacks[1] if lacks else 'operation'} for its types "
            f"({', '.join(types)}); export it to torch-export, or let model.factory make it in float32"
        ) from cause
    names = [each.name for each in session.get_inputs()]

    def computes(given: Inputs) -> Features:
        named = given if isinstance(given, dict) else dict(zip(names, features_of_inputs(given), strict=True))
        found = session.run(None, {name: named[name].numpy() for name in names})
        return tuple(torch.from_numpy(output) for output in found)

    return computes


_STATE = "state-dict"
KINDS: Mapping[str, Callable[[Workload, Inputs, Path], Computes]] = {
    "onnx": _onnx,
    "torch-export": _torch_export,
    _STATE: _state_dict,
}
"""Writers of each kind of export, which read it again."""


def _program(workload: Workload, inputs: Inputs) -> "torch.export.ExportedProgram":
    """Trace the module for batches of any number of samples, and of any length where that varies."""
    # A dimension of one is taken for a constant.
    example = _map(inputs, lambda tensor: tensor.repeat_interleave(2, 0) if tensor.shape[0] == 1 else tensor)
    module, longest = workload.chain.module, workload.config.data.longest

    def free(tensor: Tensor) -> dict[int, object]:
        has_length = longest is not None and tensor.shape[1:2] == (longest,)
        return dict.fromkeys((0, 1) if has_length else (0,), torch.export.Dim.DYNAMIC)

    if isinstance(example, dict):
        shapes = {name: free(tensor) for name, tensor in example.items()}
        return torch.export.export(module, (), example, dynamic_shapes=shapes)
    features = features_of_inputs(example)
    return torch.export.export(module, features, dynamic_shapes=tuple(map(free, features)))


def _map(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    if isinstance(inputs, dict):
        return {name: change(value) for name, value in inputs.items()}
    return change(inputs) if isinstance(inputs, Tensor) else tuple(map(change, inputs))


def _compare(kind: str, expected: Features, actual: Features, tolerance: float) -> None:
    """Raise DifferentError for outputs that are farther from the model's than the tolerance."""
    for slot, (ours, theirs) in enumerate(zip(expected, actual, strict=True)):
        if ours.shape != theirs.shape:
            problem = f"has the shape {tuple(theirs.shape)} and not {tuple(ours.shape)}"
        elif torch.allclose(theirs.to(ours.dtype), ours, rtol=tolerance, atol=tolerance, equal_nan=True):
            continue
        else:
            problem = f"differs by up to {(theirs.double() - ours.double()).abs().max():.3g}, more than {tolerance:g}"
        raise DifferentError(f"the export to {kind} computes otherwise than the model: output {slot} {problem}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch tells of its own exporters out of the terminal: what counts is the comparison."""
    log = logging.getLogger("torch")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _sentence(cause: BaseException) -> str:
    if (constant := _CONSTANT.search(str(cause))) is not None:
        size = "number of samples" if constant[1] == "0" else "length"
        return f"torch traces a layer for which the {size} of a batch, {constant[2]}, is a constant, as for a recurrent one"
    first = next((line for line in str(cause).splitlines() if line.strip()), "")  # exporters tell pages
    return f"{type(cause).__name__}: {first.strip()}"[:300]
