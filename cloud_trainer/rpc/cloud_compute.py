"""What the trainer computes for a batch: the cloud's blocks on the compute thread, the codecs on theirs."""

from torch import Tensor

from cloud_trainer.sessions.cloud_batch import CloudBatch, StepListener
from cloud_trainer.sessions.cloud_training import CloudTraining
from shared.codec import Encoded, codec_by_name
from shared.concurrency.threads import Runner
from shared.tensor_wire import decode_tensor, encode_tensor
from shared.transport.stream.framing import WireTensor
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, StepReport


class CloudCompute:
    """The cloud's blocks and codecs of one session. Called on the event loop, one batch of a kind at a time."""

    def __init__(self, training: CloudTraining, steps: Runner, codecs: Runner) -> None:
        """steps, codecs: the session's lanes on the compute thread and on the codec thread."""
        self._training = training
        self._steps = steps
        self._codecs = codecs

    async def train(self, batch: CloudBatch, listener: StepListener) -> StepReport:
        """Do one step on the compute thread, which also calls `listener`. Returns the report of the step."""
        return await self._steps.run(self._training.train, batch, listener)

    async def encode(self, deployment: Deployment, gradient: Tensor) -> Encoded:
        """Encode an error gradient for its way down."""
        return await encode_tensor(gradient, codec_by_name(deployment.downlink_codec), self._codecs)

    async def decode(self, tensor: WireTensor) -> Tensor:
        """The values of a tensor that has arrived."""
        return await decode_tensor(tensor, self._codecs)
