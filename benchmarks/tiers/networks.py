"""The networks of paper 004 as profiles: operations and bytes of every block, at stated speeds.

LeNet-5 on CIFAR-10, and AlexNet on Tiny ImageNet at 64 x 64, as torchvision has it with 200 classes. A multiplication and an
addition are two operations; a backward pass has twice those of a forward pass, and an update three for each weight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_agent.planning import Profile, parse_profile
from edge_agent.planning.profile import SCHEMA
from shared.bounds import SAMPLES_AHEAD

FLOAT_BYTES, LABEL_BYTES = 4, 8
TRAINED_BATCH = 128


@dataclass(frozen=True)
class Layer:
    """A block: its operations on a sample, its weights, and the numbers of its output."""

    name: str
    operations: float
    weights: int
    outputs: int


@dataclass(frozen=True)
class Network:
    """A network, and the numbers of its input."""

    name: str
    inputs: int
    layers: tuple[Layer, ...]


def convolution(name: str, before: int, after: int, kernel: int, side: int, pooled: int | None = None) -> Layer:
    """Return a convolution with a square output, and the pooling after it."""
    weights = before * after * kernel * kernel
    return Layer(name, 2.0 * weights * side * side, weights + after, after * (pooled or side) ** 2)


def linear(name: str, before: int, after: int) -> Layer:
    """Return a fully connected block."""
    return Layer(name, 2.0 * before * after, before * after + after, after)


LENET = Network(
    "LeNet-5 on CIFAR-10",
    3 * 32 * 32,
    (
        convolution("conv1", 3, 6, 5, 28, 14),
        convolution("conv2", 6, 16, 5, 10, 5),
        linear("fc1", 400, 120),
        linear("fc2", 120, 84),
        linear("fc3", 84, 10),
    ),
)
ALEXNET = Network(
    "AlexNet on Tiny ImageNet",
    3 * 64 * 64,
    (
        convolution("conv1", 3, 64, 11, 15, 7),
        convolution("conv2", 64, 192, 5, 7, 3),
        convolution("conv3", 192, 384, 3, 3),
        convolution("conv4", 384, 256, 3, 3),
        convolution("conv5", 256, 256, 3, 3, 1),
        linear("fc1", 256, 4096),
        linear("fc2", 4096, 4096),
        linear("fc3", 4096, 200),
    ),
)


@dataclass(frozen=True)
class Setting:
    """The speeds of the three workers, and of what lies between them."""

    operations_per_second: Mapping[str, float]
    """Speeds of the device, the edge server and the cloud, in this order."""
    near_mbit: float
    """Rate between the device and the edge server, both ways."""
    far_mbit: float
    """Rate beyond the edge server, both ways. What goes from the device to the cloud takes both segments."""
    block_seconds: float = 0.0
    """Seconds of a pass through a block beside its operations."""
    near_trip_seconds: float = 0.002
    far_trip_seconds: float = 0.02


def profile_of(network: Network, setting: Setting, batch_size: int = TRAINED_BATCH) -> Profile:
    """Return the profile of a network. Samples and labels leave ahead, as in a run that says nothing of it."""
    return replace(parse_profile(document_of(network, setting, batch_size), network.name), samples_ahead=SAMPLES_AHEAD)


def document_of(network: Network, setting: Setting, batch_size: int) -> dict[str, Any]:
    """Return the same as a file has it."""
    edge, near, gpu = setting.operations_per_second
    sizes = [FLOAT_BYTES * numbers for numbers in (network.inputs, *(layer.outputs for layer in network.layers))]
    through = min(setting.near_mbit, setting.far_mbit)
    return {
        "schema": SCHEMA,
        "model": network.name,
        "batch_size": batch_size,
        "label_bytes": LABEL_BYTES,
        "blocks": [
            {
                "name": layer.name,
                "bytes": FLOAT_BYTES * layer.weights,
                "parameter_bytes": FLOAT_BYTES * layer.weights,
                "reads_raw": index == 0,
            }
            for index, layer in enumerate(network.layers)
        ],
        "sample_bytes": sizes,
        "workers": [
            _worker(name, network.layers, speed, setting.block_seconds)
            for name, speed in setting.operations_per_second.items()
        ],
        "links": [
            _link(edge, near, setting.near_mbit, setting.near_trip_seconds),
            _link(near, gpu, setting.far_mbit, setting.far_trip_seconds),
            _link(edge, gpu, through, setting.near_trip_seconds + setting.far_trip_seconds),
        ],
        "shared_segments": [[0, 2], [1, 2]],
        "codecs": {"uniform8": {"bits": 8, "encode": [0.0, 0.0], "decode": [0.0, 0.0]}},
    }


def _worker(name: str, layers: Sequence[Layer], speed: float, block_seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "by_samples": {
            "forward": [[block_seconds, layer.operations / speed] for layer in layers],
            "backward": [[block_seconds, 2 * layer.operations / speed] for layer in layers],
            "update": [3 * layer.weights / speed for layer in layers],
        },
    }


def _link(near: str, far: str, mbit: float, trip_seconds: float) -> dict[str, Any]:
    return {"between": [near, far], "uplink": mbit * 1e6, "downlink": mbit * 1e6, "round_trip_seconds": trip_seconds}
