"""What the edge computes of a batch: its blocks forward and backward, and the codecs, each on the thread for it."""

from collections.abc import Callable

from torch import Tensor

from edge_agent.experiment.workers import Workers
from edge_agent.training.window import BatchInFlight
from shared.codec import Codec, Encoded, FeedbackMode, compensate, compression_error, is_lossy
from shared.model.features import Features, Gradients
from shared.tensor_wire import decode_tensor, encode_tensor, slot_codec
from shared.training.block_state import element_bytes
from shared.training.device import synchronise
from shared.training.held_blocks import HeldBlocks
from shared.training.policies import BackwardPolicy
from shared.training.stage import Stage
from shared.training.step_log import StepLog
from shared.transport.stream.framing import WireTensor


class EdgeCompute:
    """The edge's blocks and codecs. Called on the event loop, one batch of a kind at a time."""

    def __init__(
        self,
        held: HeldBlocks,
        make_policy: Callable[[Stage], BackwardPolicy],
        feedback: FeedbackMode,
        workers: Workers,
        step_log: StepLog | None = None,
    ) -> None:
        """step_log: where each applied gradient is written down."""
        self._held = held
        self._make_policy = make_policy
        self._feedback = feedback
        self._workers = workers
        self._step_log = step_log
        self.begin(0)

    def begin(self, cut: int) -> None:
        """A stretch of steps begins, with the blocks before `cut` here and nothing in flight."""
        self._stage = Stage(self._held, 0, cut)
        self._policy = self._make_policy(self._stage)

    @property
    def gradients_return(self) -> bool:
        """Whether error gradients return, since something on the edge learns.

        Asked between batches only: stashing puts other weights into the blocks.
        """
        return self._policy.gradients_return

    async def forward(self, step: int, inputs: Tensor, *, weights_stay: bool) -> Features:
        """The features of a batch, on the host. weights_stay: they change no more before its own update."""
        return await self._workers.compute.run(self._forward, step, inputs, weights_stay=weights_stay)

    async def backward(self, batch: BatchInFlight) -> None:
        """Apply the gradients of the oldest batch that was forwarded, and update the weights."""
        await self._workers.compute.run(self._backward, batch)

    async def encode(self, batch: BatchInFlight, *, gradients_return: bool) -> None:
        """Encode the features of a batch; what feedback needs of them is kept where gradients come back."""
        assert batch.features, "features are encoded once"
        feedback = gradients_return and self._feedback is not FeedbackMode.OFF
        encodings, errors = [], []
        for feature in batch.features:
            codec, error = slot_codec(batch.deployment.codec, feature.dtype), None
            if feedback and is_lossy(codec.name):
                encoding, error = await self._workers.codec.run(_encode_with_error, codec, feature)
            else:
                if batch.deployment.staleness:
                    # It waits for its gradient while others are computed. In the middle of where their activations were, it
                    # would keep that memory from being used again as a whole: six features of 32 KB cost 50 MB.
                    feature = await self._workers.codec.run(feature.clone)
                encoding = await encode_tensor(feature, codec, self._workers.codec)
            encodings.append(encoding)
            errors.append(error)
        batch.encodings, batch.compression_errors, batch.features = tuple(encodings), tuple(errors), ()

    async def decode(self, tensor: WireTensor) -> Tensor:
        """The values of a tensor that has arrived."""
        return await decode_tensor(tensor, self._workers.codec)

    def _forward(self, step: int, inputs: Tensor, *, weights_stay: bool) -> Features:
        """On the host, so that T1 ends when all is computed, and encoding does not wait for what a GPU is given next."""
        return tuple(feature.to("cpu") for feature in self._policy.forward(step, (inputs,), weights_stay=weights_stay))

    def _backward(self, batch: BatchInFlight) -> None:
        arrived, batch.gradients = batch.gradients, {}
        self._policy.backward(batch.step, self._compensated(batch, arrived))
        self._stage.update(batch.step)
        synchronise(self._stage.device)
        if self._step_log is not None:
            self._step_log.applied(batch.step, *(element_bytes(arrived[slot]) for slot in sorted(arrived)))

    def _compensated(self, batch: BatchInFlight, arrived: dict[int, Tensor]) -> Gradients:
        """The error gradients at the features as they were before their codec; what codecs did to these is forgotten."""
        errors, batch.compression_errors = batch.compression_errors, ()
        return tuple(
            arrived.get(slot) if error is None else compensate(arrived[slot], error, batch.samples, self._feedback)
            for slot, error in enumerate(errors)
        )


def _encode_with_error(codec: Codec, feature: Tensor) -> tuple[Encoded, Tensor]:
    encoding = codec.encode(feature)
    return encoding, compression_error(codec.decode(encoding), feature.cpu())
