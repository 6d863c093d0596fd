"""What the operations of a placement cost, whatever its links carry: seconds of the workers, bits of the messages.

The cost model and the simulator ask through `OperationCosts`, so that what was measured block by block, what a predictor says
of a whole stage, and the profile of two devices can all stand behind it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shared.errors import PlanError
from shared.placement import Backward, Cargo, Crossing, Forward, Operation, Update
from shared.planning.measurements import FLOAT32_BITS


class Message(NamedTuple):
    """What it takes to bring one crossing to its receiver."""

    bits: float
    """On the link, with what frames the message."""
    send_seconds: float = 0.0
    """What the sender does before the message goes: encoding, and the overhead of a message."""
    tail_seconds: float = 0.0
    """What the sender does once the message is on its way: it keeps the worker busy, and the step does not wait for it."""
    receive_seconds: float = 0.0
    """What the receiver does before it can use the message: decoding, and the overhead of a message."""


class OperationCosts(Protocol):
    """The costs of one model on the workers of a placement."""

    def seconds(self, worker: str, operation: Operation) -> float:
        """How long a worker computes in one operation of its program; what it sends and receives is not in it."""

    def message(self, crossing: Crossing, codec: str | None) -> Message:
        """What one crossing takes. codec: the one that the placement names for its route; None sends it as it is."""


class Linear(NamedTuple):
    """Seconds that grow with a number of samples or bytes, from what none of them would take."""

    seconds: float
    seconds_per_unit: float = 0.0

    def at(self, units: float) -> float:
        """Seconds for so many."""
        return self.seconds + self.seconds_per_unit * units


class BlockSeconds(NamedTuple):
    """One block on one worker."""

    forward: Linear
    """Seconds by samples."""
    backward: Linear
    """Seconds by samples, without the forward that a replay does again."""
    update: float


class CodecCosts(NamedTuple):
    """What a codec makes of float32."""

    bits: float
    """The bits of each number once it is encoded."""
    encode: Linear
    """Seconds by the bytes of the float32 form, as `decode` has them."""
    decode: Linear


@dataclass(frozen=True)
class BlockCosts:
    """Costs that were measured block by block, as `OperationCosts`: a stage takes what its blocks take together.

    The loss counts to the last block. Loading goes on beside the computing and counts for nothing, and so does adding parts.
    """

    blocks: Mapping[str, tuple[BlockSeconds, ...]]
    """The costs of every block of the model, by worker."""
    feature_bytes: tuple[float, ...]
    """The bytes of one sample in float32: the input of each block, and the output of the model. L + 1 entries."""
    weight_bytes: tuple[float, ...]
    """The bytes of each block in float32, and of its gradient. L entries."""
    label_bytes: float
    """The bytes of one sample's labels."""
    codecs: Mapping[str, CodecCosts]
    overhead: Linear
    """What a message takes of its sender and of its receiver, each, by the bytes that the link carries."""

    def seconds(self, worker: str, operation: Operation) -> float:
        """See `OperationCosts`. PlanError where nothing is known of the worker."""
        match operation:
            case Forward(stage):
                return sum(self._of(worker, block).forward.at(stage.rows.count) for block in stage.blocks)
            case Backward(stage):
                return sum(self._of(worker, block).backward.at(stage.rows.count) for block in stage.blocks)
            case Update(block):
                return self._of(worker, block).update
        return 0.0

    def message(self, crossing: Crossing, codec: str | None) -> Message:
        """See `OperationCosts`. PlanError where nothing is known of the codec."""
        plain_bytes = self._bytes(crossing)
        if codec is None:
            overhead = self.overhead.at(plain_bytes)
            return Message(8 * plain_bytes, send_seconds=overhead, receive_seconds=overhead)
        if codec not in self.codecs:
            raise PlanError(
                f"nothing is known of codec {codec!r}; what is known are {', '.join(self.codecs) or 'none'}"
            )
        known = self.codecs[codec]
        encoded_bytes = plain_bytes * known.bits / FLOAT32_BITS
        overhead = self.overhead.at(encoded_bytes)
        return Message(
            8 * encoded_bytes,
            send_seconds=known.encode.at(plain_bytes) + overhead,
            receive_seconds=known.decode.at(plain_bytes) + overhead,
        )

    def _of(self, worker: str, block: int) -> BlockSeconds:
        if worker not in self.blocks:
            raise PlanError(
                f"nothing was measured on worker {worker!r}; what was are {', '.join(self.blocks) or 'none'}"
            )
        return self.blocks[worker][block]

    def _bytes(self, crossing: Crossing) -> float:
        match crossing.cargo:
            case Cargo.LABEL:
                return self.label_bytes * crossing.rows.count
            case Cargo.FEATURE | Cargo.ERROR_GRADIENT:
                return self.feature_bytes[crossing.index] * crossing.rows.count
            case Cargo.WEIGHT_GRADIENT | Cargo.WEIGHTS:
                return self.weight_bytes[crossing.index]
