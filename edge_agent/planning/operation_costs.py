"""The costs of a placement's operations without its links: seconds of the workers, bits of the messages.

The cost model and the simulator ask through `OperationCosts`. Behind it may stand measurements of each block,
predictions of whole stages, or the profile of two devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from edge_agent.planning.measurements import FLOAT32_BITS, Linear
from shared.errors import PlanError
from shared.placement import Backward, Cargo, Crossing, Forward, Operation, Update


class Message(NamedTuple):
    """The cost of bringing one crossing to its receiver."""

    bits: float
    """Bits on the link, the message's framing included."""
    send_seconds: float = 0.0
    """Seconds of the sender before the message leaves, such as encoding."""
    send_tail_seconds: float = 0.0
    """Seconds of the sender beside. They keep the worker busy, and the message does not wait for them."""
    receive_seconds: float = 0.0
    """Seconds of the receiver before it can use the message, such as decoding."""
    receive_tail_seconds: float = 0.0
    """Seconds of the receiver beside. They keep the worker busy once it has done what waits for the message."""


class OperationCosts(Protocol):
    """The costs of one model on the workers of a placement."""

    def seconds(self, worker: str, operation: Operation) -> float:
        """Return the seconds that a worker computes in one operation of its program. Sending and receiving are not included."""

    def message(self, crossing: Crossing, codec: str | None) -> Message:
        """Return the cost of one crossing. codec: the one that the placement names for its route; None sends it as it is."""


class BlockSeconds(NamedTuple):
    """One block on one worker."""

    forward: Linear
    """Seconds of a forward pass, by samples."""
    backward: Linear
    """Seconds of a backward pass, by samples, without a replay's second forward pass."""
    update: float

    def slowed(self, factor: float) -> "BlockSeconds":
        """Return the same with all times multiplied."""
        return BlockSeconds(self.forward.times(factor), self.backward.times(factor), self.update * factor)


class CodecCosts(NamedTuple):
    """The effect of a codec on float32."""

    bits: int
    """Bits of each number once it is encoded."""
    encode: Linear
    """Seconds of encoding by the bytes of the float32 form; the same for `decode`."""
    decode: Linear


@dataclass(frozen=True)
class BlockCosts:
    """Costs that were measured block by block, as `OperationCosts`: a stage takes the sum of its blocks.

    The loss counts to the last block. Loading runs beside the computing and counts for nothing, and so does adding parts.
    """

    blocks: Mapping[str, tuple[BlockSeconds, ...]]
    """Costs of every block of the model, by worker."""
    feature_bytes: tuple[float, ...]
    """Bytes of one sample in float32: the input of each block, and the output of the model. L + 1 entries."""
    weight_bytes: tuple[float, ...]
    """Bytes of each block in float32, and of its gradient. L entries."""
    label_bytes: float
    """Bytes of one sample's labels."""
    codecs: Mapping[str, CodecCosts]
    messages: Mapping[str, Linear] = field(default_factory=dict)
    """Cost of a message at each of its ends, by the bytes on the link, by worker. Those of others cost nothing.

    The worker computes nothing meanwhile: its threads share the interpreter, and where it has a share of a core that, too. The
    message does not wait, because its parts are packed, sent and read while others are on the link."""

    def seconds(self, worker: str, operation: Operation) -> float:
        """Return the seconds as `OperationCosts` says. PlanError for an unknown worker."""
        match operation:
            case Forward(stage):
                return sum(self._of(worker, block).forward.at(stage.rows.count) for block in stage.blocks)
            case Backward(stage):
                return sum(self._of(worker, block).backward.at(stage.rows.count) for block in stage.blocks)
            case Update(block):
                return self._of(worker, block).update
        return 0.0

    def message(self, crossing: Crossing, codec: str | None) -> Message:
        """Return the cost as `OperationCosts` says. PlanError for an unknown codec."""
        plain_bytes = self._bytes(crossing)
        sender, receiver = self.message_at(crossing.sender), self.message_at(crossing.receiver)
        if codec is None:
            return Message(
                8 * plain_bytes,
                send_tail_seconds=sender.at(plain_bytes),
                receive_tail_seconds=receiver.at(plain_bytes),
            )
        if codec not in self.codecs:
            raise PlanError(
                f"nothing is known of codec {codec!r}; what is known are {', '.join(self.codecs) or 'none'}"
            )
        known = self.codecs[codec]
        encoded_bytes = plain_bytes * known.bits / FLOAT32_BITS
        return Message(
            8 * encoded_bytes,
            send_seconds=known.encode.at(plain_bytes),
            send_tail_seconds=sender.at(encoded_bytes),
            receive_seconds=known.decode.at(plain_bytes),
            receive_tail_seconds=receiver.at(encoded_bytes),
        )

    def message_at(self, worker: str) -> Linear:
        """Return the cost of a message that this worker sends or receives, by the bytes on the link."""
        return self.messages.get(worker, Linear(0.0))

    @property
    def widths(self) -> frozenset[int]:
        """Return the bits that features can have: those of the codecs, and 32."""
        return frozenset((FLOAT32_BITS, *(int(codec.bits) for codec in self.codecs.values())))

    def codec_of(self, bits: int) -> str | None:
        """Return the name of a codec of so many bits; None if nothing is known of one."""
        return next((name for name, known in self.codecs.items() if known.bits == bits), None)

    def slowed(self, factors: Mapping[str, float]) -> "BlockCosts":
        """Return the same with the times of some workers multiplied."""
        slowed = {
            worker: tuple(block.slowed(factors.get(worker, 1.0)) for block in blocks)
            for worker, blocks in self.blocks.items()
        }
        return replace(self, blocks=slowed)

    def named(self, names: Mapping[str, str]) -> "BlockCosts":
        """Return the same with other names for its workers."""
        return replace(
            self,
            blocks={names[worker]: blocks for worker, blocks in self.blocks.items()},
            messages={names[worker]: cost for worker, cost in self.messages.items()},
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
            case Cargo.NORMS | Cargo.COEFFICIENT | Cargo.SCALE:
                return 0.0
