"""The four networks of paper 002 as tables of layers: the bytes and the multiplications of each, from their architectures.

Sources: VGG-19 (Simonyan and Zisserman 2015, configuration E), GoogLeNet (Szegedy et al. 2015, Table 1, without the auxiliary
classifiers), Inception-v4 (Szegedy et al. 2017, Fig. 3 to 9), ResNet-152 (He et al. 2016, Table 1, the stride in the 3 x 3).
Convolutions of the last two and of GoogLeNet count the scale and the shift of their batch norm. Branches of one depth are one
layer, as in the paper (III, A). Speeds are those of its Table II, without profiling.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from edge_agent.planning.schedules import Layers

FLOAT_BYTES = 4
FORWARD_SHARE = 1 / 3
"""Part of a layer's seconds that its forward takes: its backward multiplies twice as often."""


@dataclass(frozen=True)
class Part:
    """One convolution or linear layer. kernel: its height times its width. size: pixels of its output."""

    kernel: int
    inputs: int
    outputs: int
    size: int = 1
    offsets: int = 2
    """Numbers for each output channel beside the weights."""

    @property
    def bytes(self) -> int:
        """Bytes of its parameters in float32."""
        return FLOAT_BYTES * self.outputs * (self.kernel * self.inputs + self.offsets)

    @property
    def multiplications(self) -> int:
        """Multiplications of a forward pass of one sample."""
        return self.kernel * self.inputs * self.outputs * self.size


Depth = Sequence[Part]
"""The parts that stand beside each other."""


@dataclass(frozen=True)
class Network:
    """A network, and the samples a second that paper 002 trained it with on one worker (Table II)."""

    name: str
    depths: tuple[tuple[Part, ...], ...]
    samples_per_second: float

    def layers(
        self, batch: int, bits_per_second: float, message_seconds: float, samples_per_second: float | None = None
    ) -> Layers:
        """Return its table for one member: a batch of samples over a link of so many bits per second each way."""
        work = [sum(part.multiplications for part in depth) for depth in self.depths]
        seconds = [batch / (samples_per_second or self.samples_per_second) * each / sum(work) for each in work]
        sizes = [sum(part.bytes for part in depth) for depth in self.depths]
        carried = tuple(8 * size / bits_per_second for size in sizes)
        return Layers(
            model=self.name,
            message_seconds=message_seconds,
            names=tuple(f"layer{place + 1}" for place in range(len(sizes))),
            bytes=tuple(sizes),
            pull_seconds=carried,
            forward_seconds=tuple(FORWARD_SHARE * each for each in seconds),
            backward_seconds=tuple((1.0 - FORWARD_SHARE) * each for each in seconds),
            push_seconds=carried,
        )


def _beside(*branches: Sequence[Part]) -> Iterator[Depth]:
    """Yield the depths of branches that begin at one place."""
    for depth in zip_longest(*branches):
        yield [part for part in depth if part is not None]


def _vgg19() -> Iterator[Depth]:
    channels = 3
    for outputs, count, side in ((64, 2, 224), (128, 2, 112), (256, 4, 56), (512, 4, 28), (512, 4, 14)):
        for _ in range(count):
            yield [Part(9, channels, outputs, side**2, offsets=1)]
            channels = outputs
    for inputs, outputs in ((512 * 49, 4096), (4096, 4096), (4096, 1000)):
        yield [Part(1, inputs, outputs, offsets=1)]


def _googlenet() -> Iterator[Depth]:
    yield [Part(49, 3, 64, 112**2)]
    yield [Part(1, 64, 64, 56**2)]
    yield [Part(9, 64, 192, 56**2)]
    modules = (
        (28, 192, 64, 96, 128, 16, 32, 32),
        (28, 256, 128, 128, 192, 32, 96, 64),
        (14, 480, 192, 96, 208, 16, 48, 64),
        (14, 512, 160, 112, 224, 24, 64, 64),
        (14, 512, 128, 128, 256, 24, 64, 64),
        (14, 512, 112, 144, 288, 32, 64, 64),
        (14, 528, 256, 160, 320, 32, 128, 128),
        (7, 832, 256, 160, 320, 32, 128, 128),
        (7, 832, 384, 192, 384, 48, 128, 128),
    )
    for side, inputs, one, reduced3, three, reduced5, five, pooled in modules:
        size = side**2
        yield from _beside(
            [Part(1, inputs, one, size)],
            [Part(1, inputs, reduced3, size), Part(9, reduced3, three, size)],
            [Part(1, inputs, reduced5, size), Part(25, reduced5, five, size)],
            [Part(1, inputs, pooled, size)],
        )
    yield [Part(1, 1024, 1000, offsets=1)]


def _inception_v4() -> Iterator[Depth]:
    for kernel, inputs, outputs, side in ((9, 3, 32, 149), (9, 32, 32, 147), (9, 32, 64, 147), (9, 64, 96, 73)):
        yield [Part(kernel, inputs, outputs, side**2)]
    yield from _beside(
        [Part(1, 160, 64, 73**2), Part(9, 64, 96, 71**2)],
        [Part(1, 160, 64, 73**2), Part(7, 64, 64, 73**2), Part(7, 64, 64, 73**2), Part(9, 64, 96, 71**2)],
    )
    yield [Part(9, 192, 192, 35**2)]
    size = 35**2
    for _ in range(4):
        yield from _beside(
            [Part(1, 384, 96, size)],
            [Part(1, 384, 64, size), Part(9, 64, 96, size)],
            [Part(1, 384, 64, size), Part(9, 64, 96, size), Part(9, 96, 96, size)],
            [Part(1, 384, 96, size)],
        )
    yield from _beside(
        [Part(9, 384, 384, 17**2)], [Part(1, 384, 192, size), Part(9, 192, 224, size), Part(9, 224, 256, 17**2)]
    )
    size = 17**2
    for _ in range(7):
        yield from _beside(
            [Part(1, 1024, 384, size)],
            [Part(1, 1024, 192, size), Part(7, 192, 224, size), Part(7, 224, 256, size)],
            [
                Part(1, 1024, 192, size),
                Part(7, 192, 192, size),
                Part(7, 192, 224, size),
                Part(7, 224, 224, size),
                Part(7, 224, 256, size),
            ],
            [Part(1, 1024, 128, size)],
        )
    yield from _beside(
        [Part(1, 1024, 192, size), Part(9, 192, 192, 8**2)],
        [Part(1, 1024, 256, size), Part(7, 256, 256, size), Part(7, 256, 320, size), Part(9, 320, 320, 8**2)],
    )
    size = 8**2
    for _ in range(3):
        yield from _beside(
            [Part(1, 1536, 256, size)],
            [Part(1, 1536, 384, size), Part(3, 384, 512, size)],
            [Part(1, 1536, 384, size), Part(3, 384, 448, size), Part(3, 448, 512, size), Part(3, 512, 512, size)],
            [Part(1, 1536, 256, size)],
        )
    yield [Part(1, 1536, 1000, offsets=1)]


def _resnet152() -> Iterator[Depth]:
    yield [Part(49, 3, 64, 112**2)]
    channels, before = 64, 56
    for middle, count, side in ((64, 3, 56), (128, 8, 28), (256, 36, 14), (512, 3, 7)):
        for index in range(count):
            outputs = 4 * middle
            shortcut = [Part(1, channels, outputs, side**2)] if index == 0 else []
            yield [Part(1, channels, middle, before**2), *shortcut]
            yield [Part(9, middle, middle, side**2)]
            yield [Part(1, middle, outputs, side**2)]
            channels, before = outputs, side
    yield [Part(1, 2048, 1000, offsets=1)]


NETWORKS = (
    Network("VGG-19", tuple(map(tuple, _vgg19())), 4.50),
    Network("GoogLeNet", tuple(map(tuple, _googlenet())), 30.02),
    Network("Inception-v4", tuple(map(tuple, _inception_v4())), 4.62),
    Network("ResNet-152", tuple(map(tuple, _resnet152())), 4.54),
)
