"""What the edge computes of a batch: its blocks forward and backward, and the codecs, each on the thread for it."""

from collections.abc import Callable

from torch import Tensor

from edge_agent.experiment.workers import Workers
from edge_agent.training.window import BatchInFlight
from shared.codec import Codec, Encoded, FeedbackMode, codec_by_name, compensate, compression_error, is_lossy
from shared.tensor_wire import decoded, encoded
from shared.training.device import synchronise
from shared.training.policies import BackwardPolicy
from shared.training.stage_state import bytes_of
from shared.training.step_log import StepLog
from shared.transport.stream.framing import WireTensor


class EdgeCompute:
    """The edge's blocks and codecs. Called on the event loop, one batch of a kind at a time."""

    def __init__(
        self,
        make_policy: Callable[[], BackwardPolicy],
        feedback: FeedbackMode,
        workers: Workers,
        step_log: StepLog | None = None,
    ) -> None:
        """make_policy: a backward policy with no batch in it. step_log: where each applied gradient is written down."""
        self._make_policy = make_policy
        self._policy = make_policy()
        self._feedback = feedback
        self._workers = workers
        self._step_log = step_log

    def restart(self) -> None:
        """Forget every batch that was forwarded and not applied."""
        self._policy = self._make_policy()

    @property
    def learns(self) -> bool:
        """Whether anything on the edge learns. Asked between batches only: stashing puts other weights into the blocks."""
        return self._policy.needs_gradients

    async def forward(self, step: int, inputs: Tensor, *, alone: bool) -> Tensor:
        """The feature of a batch, on the host. alone: no update comes before this batch's own."""
        return await self._workers.compute.run(self._forward, step, inputs, alone=alone)

    async def backward(self, batch: BatchInFlight) -> None:
        """Apply the gradient of the oldest batch that was forwarded, and update the weights."""
        await self._workers.compute.run(self._backward, batch)

    async def encode(self, batch: BatchInFlight, *, gradient_comes: bool) -> Encoded:
        """Encode the feature of a batch; what feedback needs of it is kept where a gradient comes back."""
        assert batch.outputs is not None, "a feature is encoded once"
        codec, feature = codec_by_name(batch.deployment.codec), batch.outputs
        if gradient_comes and self._feedback is not FeedbackMode.OFF and is_lossy(codec.name):
            encoding, batch.compression_error = await self._workers.codec.run(_encode_with_error, codec, feature)
        else:
            if batch.deployment.staleness:
                # It waits for its gradient while others are computed. In the middle of where their activations were, it
                # would keep that memory from being used again as a whole: six features of 32 KB cost 50 MB.
                feature = await self._workers.codec.run(feature.clone)
            encoding = await encoded(feature, codec, self._workers.codec)
        batch.encoding, batch.outputs = encoding, None
        return encoding

    async def decode(self, tensor: WireTensor) -> Tensor:
        """The values of a tensor that has arrived."""
        return await decoded(tensor, self._workers.codec)

    def _forward(self, step: int, inputs: Tensor, *, alone: bool) -> Tensor:
        """On the host, so that T1 ends when it is computed, and its encoding does not wait for what a GPU is given next."""
        (feature,) = self._policy.forward(step, (inputs,), alone=alone)
        return feature.to("cpu")

    def _backward(self, batch: BatchInFlight) -> None:
        arrived, batch.gradient = batch.gradient, None
        assert arrived is not None, "it is applied when it has come"
        gradient = arrived
        if batch.compression_error is not None:
            gradient = compensate(gradient, batch.compression_error, batch.samples, self._feedback)
            batch.compression_error = None
        self._policy.backward(batch.step, (gradient,))
        synchronise(self._policy.device)
        if self._step_log is not None:
            self._step_log.applied(batch.step, bytes_of(arrived))


def _encode_with_error(codec: Codec, feature: Tensor) -> tuple[Encoded, Tensor]:
    encoding = codec.encode(feature)
    return encoding, compression_error(codec.decode(encoding), feature.cpu())
