"""An agent of any placement, as small as one can be: what a test wants done is done, and nothing is done again by itself."""

import asyncio
import copy
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import torch
from torch import Tensor

from shared.client.config import TrainerAddressConfig
from shared.client.credentials import PLAIN, TrainerAccess
from shared.client.link_call import StreamListener
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from shared.events import Events
from shared.events.worker import WorkerDone, WorkerStops
from shared.execution.model_facts import facts_of
from shared.model.build import build_checked_chain
from shared.placement import AGENT, Placement, PlacementPlan, document_of, held_blocks, moves
from shared.runtime.placed_worker import PlacedWorker, WorkerSetup
from shared.runtime.placement_executor import PlacementExecutor, Threads
from shared.tensor_wire import wire_dtype
from shared.training import block_state
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import copy_state, put_back, states_in
from shared.training.losses import BatchLoss, whole_loss
from shared.training.recipe import Recipe
from shared.training.state_file import serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkOpening, StepDone
from shared.wire.isthmus.v1.tensor_pb2 import TensorHeader
from tests.support.linked import feed
from tests.support.placed import CPU, INPUTS, method, recipe
from tests.support.stand_ins.trainers_blocks import TrainersBlocks
from tests.support.virtual import InlineWorker

Batches = Sequence[tuple[Tensor, Tensor]]
DROPPING = "tests.support.placed:dropping"


def message_of(placement: Placement) -> pb.Placement:
    """A placement as an agent sends it."""
    return pb.Placement(version=placement.version, document_json=json.dumps(document_of(placement)))


class PlacedAgent(TrainersBlocks):
    """The worker "edge" of one session, and the session's ids and terms at its trainers. An async context."""

    def __init__(
        self,
        placement: Placement,
        addresses: Mapping[str, str],
        factory: str = DROPPING,
        told: Recipe | None = None,
        backward: str = "replay",
        access: TrainerAccess = PLAIN,
    ) -> None:
        """addresses: of the trainers, by their names as workers. access: its credentials."""
        self._factory, self._backward, self.recipe = factory, backward, told or recipe("adam")
        self._access = access
        self.example = torch.zeros(placement.batch_size, INPUTS)
        self.chain = build_checked_chain(factory, {}, self.recipe.seed, self.example, inputs_may_cross=True)
        self.initial = copy.deepcopy(self.chain.module)
        """The model before any step."""
        self.model = facts_of(self.chain)
        self.trainers = {
            name: TrainerClient(TrainerAddressConfig(address=address), LinkConfig(), access=access)
            for name, address in addresses.items()
        }
        self.sessions: dict[str, str] = {}
        """The id that each trainer has given the session."""
        self.term = self.lineage = self.evaluations = 0
        self.done: dict[int, list[StepDone]] = defaultdict(list)
        """Reports that have been heard of each step."""
        self.stopping: list[str] = []
        """The workers that are about to stop."""
        self.tickets: dict[str, dict[str, str]] = {}
        """By the trainer that is dialled, and the worker that dials."""
        self._heard = asyncio.Event()
        self._serving: dict[str, asyncio.Task[None]] = {}
        held = HeldBlocks(self.chain, self.recipe, CPU, held_blocks(placement, AGENT))
        threads = Threads(InlineWorker(), InlineWorker())
        events = Events()
        events.subscribe(WorkerDone, self._note_done)
        events.subscribe(WorkerStops, self._note_stopping)
        setup = WorkerSetup(AGENT, held, method(backward), threads, lambda _labels: None, events.emit)
        self.held, self.worker = held, PlacedWorker(setup, PlacementPlan.of(placement, self.model))
        self.worker.start()
        self._open_clients = AsyncExitStack()

    async def __aenter__(self) -> "PlacedAgent":
        for client in self.trainers.values():
            await self._open_clients.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop_links()
        await self.worker.stop()
        await self._open_clients.aclose()

    @property
    def placement(self) -> Placement:
        """The placement that is in force here."""
        return self.worker.placement

    @property
    def fence(self) -> pb.Fence:
        """The fence that names this agent."""
        return pb.Fence(session_term=self.term)

    def request(self, trainer: str) -> pb.OpenSessionRequest:
        """Build the request that opens the session on a trainer."""
        dtype, shape = wire_dtype(self.example.dtype), self.example.shape
        return pb.OpenSessionRequest(
            protocol_version=PROTOCOL_VERSION,
            model=pb.Model(factory=self._factory, kwargs_json="{}"),
            inputs=[TensorHeader(shape=shape, dtype=dtype)],
            recipe_json=self.recipe.model_dump_json(),
            block_names=[block.name for block in self.chain.blocks],
            placement=message_of(self.placement),
            worker=trainer,
            backward=self._backward,
            feedback="batch",
        )

    async def open(self) -> None:
        """Open the session on every trainer."""
        for name, client in self.trainers.items():
            self.sessions[name] = (await client.open_session(self.request(name))).session_id

    async def join(self) -> dict[str, pb.JoinSessionResponse]:
        """Join all trainers with a higher term; what each says."""
        self.term += 1
        said = {
            name: await client.join_session(self.sessions[name], self.term) for name, client in self.trainers.items()
        }
        self._keep_tickets(said)
        return said

    async def begin(self) -> None:
        """Open, join and dial."""
        await self.open()
        await self.join()
        await self.dial()

    async def go_to(self, trainer: str, address: str) -> None:
        """Reach a trainer elsewhere from now on."""
        client = TrainerClient(TrainerAddressConfig(address=address), LinkConfig(), access=self._access)
        self.trainers[trainer] = await self._open_clients.enter_async_context(client)

    async def dial(self) -> None:
        """Dial every link of this worker's own, and have the trainers dial each other's."""
        self.worker.executor.keep_links()
        await self.dial_peers(self.tickets)
        for name in self._dialled(self.worker.executor):
            self._serving[name] = await self._linked(name, self.worker.executor)

    async def dial_peers(self, tickets: Mapping[str, Mapping[str, str]], evaluation: int = 0) -> None:
        """Have the trainers dial each other, for training or for an evaluation. tickets: as in `self.tickets`."""
        peers: dict[str, list[pb.Peer]] = defaultdict(list)
        for dialer, listener in (self.worker.plan.evaluation if evaluation else self.worker.plan.training).links:
            if dialer != AGENT:
                peers[dialer].append(
                    pb.Peer(
                        worker=listener,
                        address=self.trainers[listener].address,
                        session_id=self.sessions[listener],
                        ticket=tickets[listener][dialer],
                    )
                )
        for dialer, whom in peers.items():
            await self.trainers[dialer].dial_peers(
                pb.DialPeersRequest(
                    session_id=self.sessions[dialer], fence=self.fence, peers=whom, evaluation=evaluation
                )
            )

    async def lose(self, trainer: str) -> None:
        """Lose the link to a trainer in the middle of whatever it is doing, and dial it again."""
        serving = self._serving.pop(trainer)
        serving.cancel()
        await asyncio.wait({serving})
        self._serving[trainer] = await self._linked(trainer, self.worker.executor)

    async def train(self, first_step: int, batches: Batches) -> None:
        """Batches from this step on, until every worker has done them. Raises what a link ends with."""
        feed(self.worker.executor, self.placement, first_step, batches)
        await self.heard(first_step + len(batches))

    async def heard(self, step: int) -> None:
        """Wait until every worker has done all steps before this one. Raises what a link ends with."""
        while self.worker.executor.window.settled < step:
            self._heard.clear()
            hearing = asyncio.create_task(self._heard.wait())
            await asyncio.wait({hearing, *self._serving.values()}, return_when=asyncio.FIRST_COMPLETED)
            hearing.cancel()
            for serving in list(self._serving.values()):
                if serving.done():
                    serving.result()

    async def heard_stopping(self, worker: str) -> None:
        """Wait until a worker has said that it is about to stop."""
        while worker not in self.stopping:
            self._heard.clear()
            await self._heard.wait()

    async def end_links(self) -> None:
        """End all links, as an agent does with nothing under way."""
        self.worker.executor.end_links()
        if self._serving:
            await asyncio.gather(*self._serving.values())
        self._serving.clear()

    def drop_links(self) -> None:
        """Leave the links without a word, as a process that dies."""
        for serving in self._serving.values():
            serving.cancel()
        self._serving.clear()

    async def commit(self, placement: Placement, next_step: int) -> None:
        """End the links, move what has to move, put a placement into force everywhere, and dial again."""
        await self.end_links()
        arriving: dict[int, block_state.BlockTensors] = {}
        for block, sender, receiver, whole in moves(self.placement, placement):
            if AGENT not in (sender, receiver):
                ticket = await self.offer(sender, receiver, [block])
                await self.fetch(receiver, sender, ticket, [block], weights_only=not whole)
                continue
            state = self.held.block_tensors(block) if sender == AGENT else await self.download(sender, block)
            state = state if whole else block_state.without_optimizer(state)
            if receiver == AGENT:
                arriving[block] = state
            else:
                await self.upload(receiver, block, state)
        said = {name: await self.commit_at(name, placement, next_step) for name in self.trainers}
        self.held.hold(held_blocks(placement, AGENT), arriving)
        await self.worker.place(PlacementPlan.of(placement, self.model), next_step)
        self._keep_tickets(said)
        await self.dial()

    async def commit_at(self, trainer: str, placement: Placement, next_step: int) -> pb.CommitPlacementResponse:
        """Ask one trainer to put a placement into force."""
        request = pb.CommitPlacementRequest(
            session_id=self.sessions[trainer],
            fence=self.fence,
            next_step=next_step,
            placement=message_of(placement),
            lineage=self.lineage,
        )
        return await self.trainers[trainer].commit_placement(request)

    async def checkpoint(self, step: int) -> bytes:
        """Have all workers take a checkpoint at this step, which all have reached; returns this worker's own."""
        for name, client in self.trainers.items():
            request = pb.CheckpointWorkerRequest(
                session_id=self.sessions[name],
                fence=self.fence,
                name=pb.CheckpointName(lineage=self.lineage, step=step),
            )
            assert [written async for written in client.checkpoint_worker(request)] == [None, True]
        return serialize(copy_state(self.held))

    async def restore(self, lineage: int, step: int, own: bytes, placement: Placement) -> None:
        """Go back to a checkpoint of all workers, under what was in force then."""
        said = {
            name: await client.restore_worker(
                pb.RestoreWorkerRequest(
                    session_id=self.sessions[name],
                    fence=self.fence,
                    checkpoint=pb.CheckpointName(lineage=lineage, step=step),
                    placement=message_of(placement),
                )
            )
            for name, client in self.trainers.items()
        }
        self.lineage = self.term
        put_back(self.held, held_blocks(placement, AGENT), states_in(own))
        self.done.clear()
        await self.worker.place(PlacementPlan.of(placement, self.model), step)
        self._keep_tickets(said)

    async def evaluate(self, batches: Batches) -> list[BatchLoss]:
        """Evaluate each batch with the current weights, on all workers together."""
        self.evaluations += 1
        number, parts = self.evaluations, _Parts(len(batches))
        executor = await self.worker.evaluation(parts.emit)
        tickets: dict[str, dict[str, str]] = {}
        async with AsyncExitStack() as joined:
            for name, client in self.trainers.items():
                request = pb.JoinEvaluationRequest(session_id=self.sessions[name], fence=self.fence, evaluation=number)
                ready = await joined.enter_async_context(client.evaluation(request))
                tickets[name] = {ticket.worker: ticket.ticket for ticket in ready.tickets}
            await self.dial_peers(tickets, number)
            serving = [await self._linked(name, executor, number) for name in self._dialled(executor)]
            feed(executor, self.placement, 0, batches)
            ended = asyncio.create_task(parts.all_judged.wait())
            await asyncio.wait({ended, *serving}, return_when=asyncio.FIRST_COMPLETED)
            executor.end_links()
            await asyncio.gather(ended, *serving)
            await executor.stop()
        return [whole_loss(of_batch) for _, of_batch in sorted(parts.found.items())]

    async def state(self) -> dict[str, Tensor]:
        """Parameters and buffers of the whole model, each block from where its owner has it."""
        found: dict[str, Tensor] = {}
        for index, block in enumerate(self.chain.blocks):
            if (owner := self.placement.owner(index)) != AGENT:
                block_state.restore(block, None, None, block_state.without_optimizer(await self.download(owner, index)))
            found |= {
                name: value.detach() for name, value in (block.named_parameters() | block.named_buffers()).items()
            }
        return found

    async def close(self) -> None:
        """Close the session everywhere."""
        for name, client in self.trainers.items():
            await client.close_session(self.sessions[name], self.fence, resumable=False)

    def hear(self) -> None:
        """Something has been heard."""
        self._heard.set()

    def _keep_tickets(
        self, said: Mapping[str, pb.JoinSessionResponse] | Mapping[str, pb.CommitPlacementResponse]
    ) -> None:
        self.tickets = {
            name: {ticket.worker: ticket.ticket for ticket in answer.tickets} for name, answer in said.items()
        }

    def _note_done(self, event: WorkerDone) -> None:
        self.done[event.report.step].append(event.report)
        self.hear()

    def _note_stopping(self, event: WorkerStops) -> None:
        self.stopping.append(event.worker)
        self.hear()

    def _dialled(self, executor: PlacementExecutor) -> list[str]:
        own = [link.listener for link in self.worker.plan.training.links if link.dialer == AGENT]
        return [name for name in own if name in executor.ends]

    async def _linked(self, trainer: str, executor: PlacementExecutor, evaluation: int = 0) -> "asyncio.Task[None]":
        listener = StreamListener(
            accept=executor.ends[trainer].accept,
            owed=lambda: executor.window.settled if executor.under_way else None,
            delivered=lambda *_: None,
        )
        opening = LinkOpening(
            protocol_version=PROTOCOL_VERSION,
            session_id=self.sessions[trainer],
            session_term=self.term,
            worker=AGENT,
            evaluation=evaluation,
        )
        call, _ = await self.trainers[trainer].link(opening, listener)

        async def serve() -> None:
            try:
                await executor.serve(trainer, call.stream, call.end_writing)
            finally:
                call.cancel()

        return asyncio.create_task(serve())


class _Parts(Events):
    """The losses of an evaluation's batches, of every worker that computes any."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.subscribe(WorkerDone, self._note)
        self.found: dict[int, list[BatchLoss]] = defaultdict(list)
        self.all_judged = asyncio.Event()
        self._batches = batches

    def _note(self, event: WorkerDone) -> None:
        done = event.report
        if done.samples:
            correct = done.correct if done.HasField("correct") else None
            self.found[done.step].append(BatchLoss(done.loss, correct, done.samples))
        if len(self.found) == self._batches:
            self.all_judged.set()
