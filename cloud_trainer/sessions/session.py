"""An open session: the worker that this trainer is in it, and what the agent asks of that."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from torch import Tensor

from cloud_trainer.peers.dialer import PeerDialer
from cloud_trainer.peers.peer_links import OnDelivered, PeerLinks
from cloud_trainer.sessions.attachment import Attachment
from cloud_trainer.sessions.blocks import SessionBlocks
from cloud_trainer.sessions.building import run_of
from cloud_trainer.sessions.measuring import measured_step
from cloud_trainer.sessions.memory import Uses
from cloud_trainer.sessions.threads import TrainerThreads
from cloud_trainer.sessions.tickets import Tickets
from cloud_trainer.sessions.worker.building import BuiltWorker
from cloud_trainer.sessions.worker.dialling import Dialling
from cloud_trainer.sessions.worker.evaluation import Evaluation
from cloud_trainer.sessions.worker.figures import SessionStatistics, WorkerFigures
from cloud_trainer.sessions.worker.in_force import InForce
from shared.checkpoint import CheckpointName
from shared.errors import ProtocolError
from shared.model.spec import TensorSpec
from shared.placement import (
    AGENT,
    Deployment,
    Placement,
    held_blocks,
    moves,
    ranges_of,
)
from shared.runtime.placed_worker import PlacedWorker, WorkerSetup
from shared.runtime.worker_listener import WorkerListener
from shared.runtime.worker_run import Threads, WorkerRun
from shared.telemetry.metrics import TrainingMetrics
from shared.training.block_state import BlockTensors
from shared.training.held_state import changing_blocks, copy_state, put_back
from shared.training.losses import check_labels
from shared.training.policies import policy_of_stage
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class Session:
    """From its opening to its end. Made on the event loop, and used there once `begin` has returned, but for what computes."""

    def __init__(
        self,
        session_id: str,
        request: pb.OpenSessionRequest,
        built: BuiltWorker,
        threads: TrainerThreads,
        metrics: TrainingMetrics,
    ) -> None:
        """request: the one that opened the session."""
        self.id = session_id
        self.run_id = run_of(request, session_id)
        self.request = request
        self.judge = built.judge
        self.memory = built.judge.memory
        self.blocks = SessionBlocks(request.worker, built.held, self.memory)
        self.attachment = Attachment(session_id)
        self.statistics = SessionStatistics()
        self.blank = False
        """Whether it was built again and has not got the state of its blocks back."""
        self.forgotten = False
        """Whether it is closed for good: nothing is stored from which it could be resumed."""
        self.tickets = Tickets(session_id)
        self.name = request.worker
        """The worker that this trainer is."""
        self._lane = threads.compute_lane(session_id)
        self._lineage = 0
        self._step_log = built.step_log
        self._changing = asyncio.Lock()
        self._last_evaluation = 0
        self._evaluation: Evaluation | None = None
        self._dialling = Dialling(self.attachment.give_up)
        self._figures = WorkerFigures(self.name, self.statistics, metrics, self.blocks.forget_arrived)
        self._figures.placed(built.in_force.placement)
        self._setup = WorkerSetup(
            worker=self.name,
            held=built.held,
            method=built.method,
            threads=Threads(self._lane, threads.codec_lane(session_id)),
            check_labels=self._check_labels,
            listener=self._figures,
            step_log=built.step_log,
        )
        self._in_force = built.in_force
        self._worker: PlacedWorker
        self._is_ended = False

    async def begin(self) -> None:
        """Get ready to compute; comes before everything else."""
        self._worker = await self._lane.aside(PlacedWorker, self._setup, self._in_force.plan)
        self._worker.start()

    @property
    def placement(self) -> Placement:
        """What is in force."""
        return self._in_force.placement

    @property
    def whole(self) -> bool:
        """Whether all is in memory that is needed to go on."""
        return not (self.blank or self._worker.run.has_failed)

    @property
    def next_step(self) -> int:
        """The step that comes next: all earlier ones are in the weights."""
        return self._worker.run.next_step

    @property
    def lineage(self) -> int:
        """The session term in which it last went back to a checkpoint; 0 before the first time."""
        return self._lineage

    @property
    def deployment(self) -> Deployment:
        """What is in force, as far as a deployment says it; see `InForce`."""
        return self._in_force.deployment

    @property
    def shown_blocks(self) -> str:
        """The blocks that are held here, as ranges for a person."""
        return ", ".join(map(str, ranges_of(self.blocks.held.indices))) or "none"

    @property
    def uses(self) -> Uses:
        """What may be in flight."""
        return self._in_force.uses

    @property
    def max_staleness(self) -> int:
        """The largest K that the session may have with what is in force."""
        return self.memory.max_staleness(self.uses.trained.each_bytes)

    @property
    def waiting(self) -> dict[str, int]:
        """What waits to be computed, and to be sent."""
        return self._worker.run.waiting

    @property
    def link_rates(self) -> dict[str, float | None]:
        """By the worker at the other end, bits per second that the link of training to it was measured to carry."""
        return {peer: link.bits_per_second for peer, link in self._worker.run.links.items()}

    def run_of(self, evaluation: int) -> WorkerRun:
        """The steps of an evaluation, or of training (0). Raises StatusError where there is no such evaluation."""
        if not evaluation:
            return self._worker.run
        if self._evaluation is None or self._evaluation.number != evaluation:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"evaluation {evaluation} of session {self.id} is not under way"
            )
        return self._evaluation.run

    def on_delivered(self, evaluation: int) -> OnDelivered:
        """What is told when a link for an evaluation, or for training (0), has brought a tensor to its other end."""
        return _ignore if evaluation else self._figures.delivered

    def dialers(self, *, training: bool = True) -> list[str]:
        """The workers that dial this one."""
        plan = self._in_force.plan.training if training else self._in_force.plan.evaluation
        return [link.dialer for link in plan.links if link.listener == self.name]

    def issue_tickets(self, evaluation: int = 0) -> list[pb.Ticket]:
        """What lets other trainers dial this one, for an evaluation or for training (0)."""
        trainers = [worker for worker in self.dialers(training=not evaluation) if worker != AGENT]
        issued = self.tickets.issue(self.attachment.term, trainers, evaluation)
        return [pb.Ticket(worker=worker, ticket=ticket) for worker, ticket in issued.items()]

    def say_stopping(self) -> None:
        """Tell the agent that this trainer is about to stop."""
        self._worker.run.say_stopping()

    def copy(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A copy of the state between two steps, to be written while training goes on: facts and tensors. Computes."""
        return {}, copy_state(self.blocks.held)

    def check_arriving(self, block: int) -> int:
        """`block` if its state may be brought now. Raises ProtocolError or StatusError otherwise."""
        static = self.blocks.is_static(block)
        if self.attachment.begun and not static and self._updates(block):
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"block {block} cannot be replaced now: once session {self.id} trains, only blocks can be brought that "
                f"{self.name!r} does not update",
            )
        return block

    def check_named(self, session_id: str) -> None:
        """Refuse a message that names another session than the stream that it came on. Raises ProtocolError."""
        if session_id != self.id:
            raise ProtocolError(f"a message for session {session_id[:40]!r} came on a stream of session {self.id!r}")

    def measuring(self, first: int, stop: int, repeats: int) -> Callable[[], float]:
        """What measures blocks [first, stop) as a stage of this session runs them; see `measured_step`.

        It raises StatusError once the session trains.
        """
        self._check_untrained()
        ends_model = stop == self.placement.blocks
        policy = policy_of_stage(self.request.backward, self.placement.staleness, ends_model=ends_model)
        step = measured_step(self.blocks.held, first, stop, repeats, policy)

        def measured() -> float:
            self._check_untrained()  # the agent may have joined since the step before
            return step()

        return measured

    def _check_untrained(self) -> None:
        if self.attachment.begun:  # a step may be under way whose backward needs the weights untouched
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"session {self.id} trains; blocks are measured before that"
            )

    def check_joined(self, fence: pb.Fence) -> None:
        """Refuse a call of an agent that is not the one that joined last. Raises StatusError."""
        if fence.session_term != self.attachment.term or not self.attachment.begun:
            raise self.attachment.refusal(fence.session_term)

    @asynccontextmanager
    async def changing(self, fence: pb.Fence) -> AsyncIterator[None]:
        """Nobody else changes what is in force meanwhile.

        Raises StatusError for an agent that did not join last, and for a session that was ended.
        """
        async with self._changing:
            self.check_joined(fence)
            if self._is_ended:
                raise StatusError(grpc.StatusCode.ABORTED, f"session {self.id} was closed meanwhile")
            yield

    async def join(self, session_term: int) -> None:
        """Another agent has the session from now on, whose term is stored; all that was begun for the one before ends."""
        self.attachment.term = session_term
        self.tickets.withdraw_all_offers()
        async with self._changing:
            await self._end_all()
            self.attachment.lost_at = None  # its agent is there, linked or not
            self._last_evaluation = 0

    def check_at(self, name: CheckpointName) -> None:
        """Refuse a checkpoint of another state than the one of now. Raises StatusError."""
        run = self._worker.run
        is_here = name.lineage == self.lineage and run.may_be_at(name.step)
        if not is_here or run.in_flight or not self.whole:
            at = CheckpointName(self.lineage, self.next_step)
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"checkpoint {name} is asked for; {self.name!r} is at {at}, with {self._under_way} under way",
            )
        run.catch_up(name.step)

    async def commit(self, judged: InForce, next_step: int, lineage: int) -> None:
        """Put a judged placement into force, whole or not at all; one that is in force already is no error.

        lineage: of all workers' state. Called inside `changing`. Raises StatusError, and as `HeldBlocks.hold` does.
        """
        placement = judged.placement
        if placement == self.placement:
            return
        self.check_follows(placement, next_step, lineage)
        await self._end_all()
        self.check_follows(placement, next_step, lineage)  # what came until then may have begun another step
        await self._lane.aside(self.blocks.hold, held_blocks(placement, self.name))
        self._worker.run.catch_up(next_step)
        self._lineage = lineage
        await self._place(judged, next_step)

    def needed_of_checkpoint(self, placement: Placement) -> list[int]:
        """The blocks whose states a checkpoint has to have here, for a judged placement to come into force with it."""
        changing = set(changing_blocks(self.blocks.held.chain))
        return [block for block in held_blocks(placement, self.name) if block in changing]

    async def restore(self, step: int, states: Mapping[int, BlockTensors], judged: InForce, lineage: int) -> None:
        """Go on from a checkpoint under a judged placement, which begins a new lineage. Called inside `changing`.

        states: of the blocks that are needed (`needed_of_checkpoint`), before this step. Raises an IsthmusError when one does
        not fit; the session must not be used after that.
        """
        await self._end_all()
        await self._worker.stop()
        await self._lane.aside(put_back, self.blocks.held, held_blocks(judged.placement, self.name), states)
        self.blocks.forget_arrived()
        self._lineage, self.blank = lineage, False
        if self._step_log is not None:
            self._step_log.rolled_back(step)
        await self._place(judged, step)

    async def begin_evaluation(self, number: int) -> Evaluation:
        """Take part in an evaluation; an earlier one ends. Called inside `changing`. Raises StatusError."""
        if number <= self._last_evaluation:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"evaluation {number} is asked for; the last one was {self._last_evaluation}, and numbers rise",
            )
        if self._worker.run.in_flight or not self.whole:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION, f"no evaluation can begin while {self._under_way} is under way"
            )
        await self._end_evaluation()
        self._last_evaluation = number
        self._evaluation = Evaluation(number, await self._worker.evaluation(WorkerListener()))
        return self._evaluation

    async def dial(self, peers: Sequence[pb.Peer], evaluation: int, dialer: PeerDialer) -> None:
        """Dial other trainers, in place of those dialled before, for an evaluation or for training (0).

        Called inside `changing`. Raises StatusError or ProtocolError as `PeerLinks` does; then nothing has changed.
        """
        run, told = self.run_of(evaluation), self.on_delivered(evaluation)
        links = PeerLinks(run, peers, self.attachment.term, dialer, told, evaluation)
        await self._dialling.dial(evaluation, links)

    @property
    def missing_links(self) -> list[str]:
        """The workers that this trainer dials for training, and to which it has no link now."""
        return self._dialling.missing

    def failure_behind(self, evaluation: int) -> BaseException | None:
        """Why the links that were dialled for an evaluation, or for training (0), cannot be kept up; None while they can."""
        return self._dialling.failure(evaluation)

    async def note_ended(self, evaluation: int) -> None:
        """A link for an evaluation, or for training (0), was ended well; after the last one, those dialled here end."""
        if not self.attachment.is_attached_for(evaluation):
            await self._dialling.end(evaluation)

    async def end_evaluation(self, evaluation: Evaluation) -> None:
        """End an evaluation, unless it has ended."""
        if self._evaluation is evaluation:
            await self._end_evaluation()

    async def end(self) -> None:
        """End all of it. When this returns, nothing of the session is being computed."""
        async with self._changing:
            self._is_ended = True
            await self._end_all()
            await self._worker.stop()

    async def _place(self, judged: InForce, next_step: int) -> None:
        await self._worker.place(judged.plan, next_step)
        self._figures.placed(judged.placement)
        self._in_force = judged

    async def _end_all(self) -> None:
        """End all links and what evaluates; the steps of training stay as they are."""
        self.tickets.withdraw(0)
        self.tickets.withdraw_offers()
        await self.attachment.end()
        await self._dialling.end(0)
        await self._end_evaluation()

    async def _end_evaluation(self) -> None:
        ended, self._evaluation = self._evaluation, None
        if ended is not None:
            self.tickets.withdraw(ended.number)
            await self.attachment.end_evaluation(ended.number)
            await self._dialling.end(ended.number)
            await ended.end()

    @property
    def _under_way(self) -> str:
        steps = self._worker.run.in_flight
        return f"step {', '.join(map(str, steps))}" if steps else "no step" if self.whole else "a step that has failed"

    def _updates(self, block: int) -> bool:
        return block in self.blocks.held.indices and self.placement.owner(block) == self.name

    def check_follows(self, placement: Placement, next_step: int, lineage: int) -> None:
        """Refuse a judged placement that cannot come into force at this step of this lineage. Raises StatusError."""
        before, run = self.placement, self._worker.run
        arriving = [move.block for move in moves(before, placement) if move.receiver == self.name]
        missing = [block for block in arriving if self.blocks.lacks(block)]
        late = placement.version <= before.version or not run.may_be_at(next_step)
        is_of_another = lineage != self._lineage and bool(held_blocks(before, self.name))
        if late or missing or is_of_another or run.in_flight or not self.whole:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"placement {placement.version} at {CheckpointName(lineage, next_step)} cannot follow placement "
                f"{before.version} at {CheckpointName(self._lineage, run.next_step)}, with {self._under_way} under way"
                + (f" and without blocks {missing}" if missing else ""),
            )

    def _check_labels(self, labels: TensorSpec) -> None:
        chain = self.judge.chain
        self.judge.check_tensor("a tensor of labels", labels.bytes)
        check_labels(self.judge.recipe.loss, chain.features[0], chain.output, labels)
        self.memory.take_labels(labels.bytes, self.uses)


def _ignore(*_news: object) -> None:
    pass
