"""The real pipeline of the edge and the real training stream of the trainer, joined by virtual wires, and a record of what
both did.

Sessions are made without RPCs; all that is not tested here (gRPC, configuration, datasets) is left out.
"""

import random
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from torch import Tensor, nn

from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.rpc.cloud_compute import CloudCompute
from cloud_trainer.rpc.evaluation import evaluate
from cloud_trainer.rpc.incoming_batches import IncomingBatches
from cloud_trainer.rpc.stream_server import StreamServer
from cloud_trainer.sessions.cloud_batch import CloudStep
from cloud_trainer.sessions.cloud_training import CloudTraining
from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import SessionMemory
from cloud_trainer.sessions.session import CutSession
from edge_agent.data import Batch
from edge_agent.data.prefetch import Prefetcher
from edge_agent.experiment.workers import Workers
from edge_agent.training.edge_compute import EdgeCompute
from edge_agent.training.listener import RunListener
from edge_agent.training.live_deployment import LiveDeployment
from edge_agent.training.pipeline import Pipeline
from edge_agent.training.step_boundary import StepBoundary
from edge_agent.training.window import Window
from shared.client.stream_call import Stream
from shared.codec import FeedbackMode, codec_by_name
from shared.concurrency.tasks import run_together
from shared.errors import IsthmusError
from shared.model.chain import Chain, build_chain
from shared.model.features import Features, Gradients
from shared.model.random_state import random_state
from shared.tensor_wire import slot_codec, to_wire
from shared.training.held_blocks import HeldBlocks
from shared.training.losses import LossHead
from shared.training.optimizers import OptimizerConfig
from shared.training.policies import POLICIES
from shared.training.recipe import Recipe, ScheduleConfig
from shared.training.stage import Stage
from shared.transport.stream.duplex import Duplex
from shared.transport.stream.framing import TensorKey, WireTensor, chunks
from shared.transport.stream.packets import Packet
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import (
    Deployment,
    EvaluateRequest,
    EvaluateResponse,
    OpenSessionRequest,
    Position,
    StepReport,
    TakeCheckpoint,
    TrainRequest,
    TrainResponse,
)
from tests.support.virtual import InlineWorker, Wire, cloud_end, edge_end

SAMPLES, INPUTS, WIDTH, CLASSES, BLOCKS, CUT, SEED = 4, 6, 8, 3, 4, 2, 3
LIMITS = Limits(tensor_bytes=1 << 20, staleness=64, session_bytes=1 << 30)
CPU = torch.device("cpu")
RECIPE = Recipe(
    optimizer=OptimizerConfig(learning_rate=0.1, momentum=0.9, clip_norm=1.0),
    schedule=ScheduleConfig(name="cosine", every="step", warmup_steps=3),
    loss="cross_entropy",
    seed=SEED,
    steps_per_epoch=10,
    total_steps=50,
)


def small_network(frozen_blocks: int = 0) -> nn.Sequential:
    """Four blocks with batch-norm and dropout on both sides of the cut; the same weights each time."""
    with random_state(SEED, "weights"):
        module = nn.Sequential(
            nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.2)),
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)),
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)),
            nn.Linear(WIDTH, CLASSES),
        )
    module[:frozen_blocks].requires_grad_(False)
    return module


def batch_of(step: int) -> Batch:
    """The samples of a step."""
    with random_state("batch", step):
        return Batch(step, torch.randn(SAMPLES, INPUTS), torch.randint(CLASSES, (SAMPLES,)))


@dataclass
class Delays:
    """Seconds of each kind of work, drawn again for every call."""

    edge: Callable[[], float] = lambda: 0.0
    cloud: Callable[[], float] = lambda: 0.0
    codec: Callable[[], float] = lambda: 0.0
    load: Callable[[], float] = lambda: 0.0
    up: Callable[[], float] = lambda: 0.0
    down: Callable[[], float] = lambda: 0.0
    write: Callable[[], float] = lambda: 0.0


@st.composite
def any_delays(draw: st.DrawFn) -> Delays:
    """Modules of any relation of speeds, each call of each taking a time of its own."""
    dice = random.Random(draw(st.integers(0, 2**32)))

    def module() -> Callable[[], float]:
        longest = draw(st.sampled_from([0.0, 0.001, 0.01, 0.1]))
        return lambda: dice.uniform(0, longest)

    return Delays(*(module() for _ in fields(Delays)))


@dataclass
class Record:
    """What happened, in its order."""

    edge: list[tuple[str, int]] = field(default_factory=list)
    """("forward" or "backward", step)"""
    deployments: dict[int, Deployment] = field(default_factory=dict)
    """Under which a step was forwarded."""
    staleness: dict[int, int] = field(default_factory=dict)
    """The staleness of each applied gradient."""
    cloud: list[int] = field(default_factory=list)
    """Steps computed."""
    updated: list[int] = field(default_factory=list)
    reported: list[int] = field(default_factory=list)
    gradients_down: list[int] = field(default_factory=list)
    fetched: int = 0
    most_ahead: int = 0
    """Batches fetched and not yet forwarded."""
    most_in_flight: int = 0
    most_shown_in_flight: int = 0
    """What the pipeline itself says, as metrics and status show it."""
    most_queued_in_cloud: int = 0
    most_inputs_kept: int = 0
    """Inputs of earlier batches that are still held when another one is forwarded."""


class _RecordedPolicy:
    def __init__(self, policy: Any, split: "VirtualSplit") -> None:
        self._policy = policy
        self._split = split
        self._inputs: list[weakref.ref[Tensor]] = []

    @property
    def gradients_return(self) -> bool:
        return bool(self._policy.gradients_return)

    def forward(self, step: int, inputs: Features, *, weights_stay: bool) -> Features:
        split, record = self._split, self._split.record
        record.deployments[step] = split.deployment.now
        record.edge.append(("forward", step))
        record.most_ahead = max(record.most_ahead, record.fetched - len(record.deployments))
        settled = len(record.staleness) if split.stage.trainable else len(record.reported)
        record.most_in_flight = max(record.most_in_flight, len(record.deployments) - settled)
        self._inputs = [known for known in self._inputs if known() is not None]
        record.most_inputs_kept = max(record.most_inputs_kept, len(self._inputs))
        self._inputs += map(weakref.ref, inputs)
        features: Features = self._policy.forward(step, inputs, weights_stay=weights_stay)
        split.on_forward(step)
        return features

    def backward(self, step: int, gradients: Gradients) -> Gradients:
        self._split.record.edge.append(("backward", step))
        at_inputs: Gradients = self._policy.backward(step, gradients)
        return at_inputs


class _RecordedTraining(CloudTraining):
    record: Record
    server: StreamServer

    def forward_and_backward(self, step: int, features: Features, labels: Tensor) -> CloudStep:
        self.record.cloud.append(step)
        queued = sum(self.server.waiting.values())
        self.record.most_queued_in_cloud = max(self.record.most_queued_in_cloud, queued)
        return super().forward_and_backward(step, features, labels)

    def update(self, step: int) -> float:
        self.record.updated.append(step)
        return super().update(step)


@dataclass
class OneStream:
    """A link that is never had again once it is lost."""

    stream: Stream

    async def reattach(self, failure: IsthmusError) -> NoReturn:
        raise failure


async def _no_checkpoint(_wanted: TakeCheckpoint, _tell: Callable[[bool], Awaitable[None]]) -> None:
    raise AssertionError("nobody asks for one here")


class VirtualSplit(RunListener):
    """Both sides of one session. Made and used on a virtual loop."""

    def __init__(
        self,
        *,
        policy: str = "replay",
        feedback: FeedbackMode = FeedbackMode.OFF,
        frozen_blocks: int = 0,
        delays: Delays | None = None,
        deployment: Mapping[str, Any] | None = None,
        staleness_changes: Mapping[int, int] | None = None,
        make_chain: Callable[[], Chain] | None = None,
    ) -> None:
        """make_chain: called for each side; None for the small network, with `frozen_blocks`."""
        make_chain = make_chain or (lambda: build_chain(small_network(frozen_blocks), batch_of(0).inputs))
        self.record = Record()
        self.on_forward: Callable[[int], None] = lambda _step: None
        self._delays = delays = delays or Delays()
        agreed = Deployment(**{"cut": CUT, "codec": "fp32", "downlink_codec": "fp32", **(deployment or {})})
        self.held = HeldBlocks(make_chain(), RECIPE, CPU, range(agreed.cut))
        self.stage = Stage(self.held, 0, agreed.cut)
        self.module = self.held.chain.module
        head, chain = LossHead(RECIPE.loss, None), make_chain()
        memory = SessionMemory(LIMITS, 0, 0, 1 << 30)
        held = HeldBlocks(chain, RECIPE, CPU, range(agreed.cut, len(chain.blocks)))
        self.training = _RecordedTraining("s", held, head, agreed, memory)
        self.training.record = self.record
        self.session = CutSession("s", OpenSessionRequest(), self.training, memory)
        self._cloud_workers = InlineWorker(delays.cloud), InlineWorker(delays.codec)
        self._workers = Workers(
            InlineWorker(delays.edge), InlineWorker(delays.codec), InlineWorker(delays.load), InlineWorker()
        )
        self.window, self.boundary = Window(), StepBoundary()
        self.deployment = LiveDeployment(agreed, self, staleness_changes)
        compute = EdgeCompute(
            self.held, lambda stage: _RecordedPolicy(POLICIES[policy](stage), self), feedback, self._workers
        )
        self.pipeline = Pipeline(compute, self.window, self.deployment, self.boundary, self, lambda _message: None)

    @property
    def state(self) -> dict[str, Tensor]:
        """The state of the whole module: the edge's blocks from the edge, the others from the trainer."""
        trained = {block.name: block for block in self.training.chain.blocks[self.stage.stop :]}
        state = self.module.state_dict()
        for block in trained.values():
            state |= {
                name: value.detach() for name, value in (block.named_parameters() | block.named_buffers()).items()
            }
        return state

    async def train(self, stops: Sequence[int], between: Callable[[int], Awaitable[None]] | None = None) -> None:
        """Run to each of the steps in `stops` in turn, drained in between, then end the stream from the edge's side."""
        delays = self._delays
        up = Wire(1e9, jitter=delays.up, write_seconds=delays.write)
        down = Wire(1e9, jitter=delays.down, write_seconds=delays.write)
        edge = edge_end(up, down, self.window.accept, chunk_bytes=128)
        first = TensorKey(self.training.next_step, Role.ROLE_LABEL)
        incoming = IncomingBatches(self.session, first, LIMITS.tensor_bytes)
        cloud = cloud_end(up, down, incoming.accept, chunk_bytes=128)

        async def serve() -> None:
            await self.serve(cloud, incoming)
            down.end()

        async def drive() -> None:
            async with self.batches(stops[-1]) as batches:
                for stop in stops:
                    while self.window.started < stop:
                        await self.pipeline.run(OneStream(edge), batches, stop)
                        if between is not None:
                            await between(self.window.started)
            up.end()
            assert await edge.receive() is None

        await run_together(serve(), drive())

    async def serve(
        self,
        cloud: Duplex[TrainResponse, TrainRequest],
        incoming: IncomingBatches,
        position: Position | None = None,
    ) -> None:
        """Be the trainer on its end of a stream, to the end of that, for an edge that is at `position`."""
        metrics = TrainerMetrics(CollectorRegistry())
        compute = CloudCompute(self.training, *self._cloud_workers)
        self.training.server = StreamServer(self.session, cloud, incoming, compute, metrics, _no_checkpoint)
        await self.training.server.run(position)

    async def evaluate(self) -> EvaluateResponse:
        """Evaluate two batches through the cut, as the edge's session does."""
        deployment = self.deployment.in_force

        async def requests() -> AsyncIterator[Packet[EvaluateRequest]]:
            for number in (1, 2):
                batch = batch_of(99 + number)
                labels = TensorKey(0, Role.ROLE_LABEL, batch=number)
                parts = [to_wire(codec_by_name("raw").encode(batch.labels), labels, deployment.version)]
                for slot, feature in enumerate(self.stage.evaluate((batch.inputs,))):
                    key = TensorKey(0, Role.ROLE_FEATURE, deployment.cut, slot, batch=number)
                    encoded = slot_codec(deployment.codec, feature.dtype).encode(feature)
                    parts.append(to_wire(encoded, key, deployment.version))
                for part in parts:
                    for frame, payload in chunks(part, 64):
                        yield Packet(EvaluateRequest(session_id="s", frame=frame), payload)

        cloud, codec = self._cloud_workers
        threads = SimpleNamespace(compute_lane=lambda _: cloud, codec_lane=lambda _: codec)
        return await evaluate(requests(), lambda _: self.session, LIMITS.tensor_bytes, threads)

    def batches(self, steps: int) -> Prefetcher:
        """The batches of so many steps, fetched ahead."""
        return Prefetcher(self._fetch(steps), self._workers.load, self.pipeline.wake)

    def _fetch(self, steps: int) -> Generator[Batch]:
        for step in range(steps):
            self.record.fetched += 1
            yield batch_of(step)

    # What the pipeline tells its listener.

    def span(self, _phase: str, _what: str, _step: int, start_seconds: float, end_seconds: float, /) -> None:
        assert start_seconds <= end_seconds

    def gradient_applied(self, step: int, staleness: int, /) -> None:
        assert step not in self.record.staleness
        self.record.staleness[step] = staleness

    def uploaded(self, _payload_bytes: int, _raw_bytes: int, /) -> None:
        self.record.most_shown_in_flight = max(self.record.most_shown_in_flight, self.pipeline.in_flight)

    def downloaded(self, tensor: WireTensor, _raw_bytes: int, /) -> None:
        self.record.gradients_down.append(tensor.key.step)

    def step_reported(self, report: StepReport, samples: int, /) -> None:
        assert samples == SAMPLES
        self.record.reported.append(report.step)
