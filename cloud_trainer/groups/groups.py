"""The service of a trainer's groups: who may be a member, and the answers to the calls of members' sessions.

It alone knows of callers and of the statuses that end their calls; a group knows its seats.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import torch

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore
from cloud_trainer.groups.lives import Life, read_positions
from cloud_trainer.groups.refusals import NotNowError, RankOwnedError, SeatLostError
from cloud_trainer.groups.seats import EndSession, Seat
from cloud_trainer.groups.trained_group import TrainedGroup
from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.opened_model import open_model
from cloud_trainer.sessions.session import Session
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint import Files
from shared.concurrency.threads import WorkerThread
from shared.errors import ConfigError
from shared.execution.step_in_flight import Parcel
from shared.model.footprint import state_bytes, state_copy_bytes
from shared.placement import Cargo
from shared.registry import codec_spec
from shared.training.block_state import BlockTensors
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import changing_blocks
from shared.training.optimizers import update_memory
from shared.transport.auth.callers import caller
from shared.transport.rpc.status import StatusError
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class Groups:
    """The groups of one trainer, by name. Made and used on the event loop."""

    def __init__(
        self,
        configured: Sequence[GroupConfig],
        files: Files | None,
        disk: WorkerThread,
        threads: TrainerThreads,
        allowed: Sequence[str],
        limits: Limits,
        device: torch.device,
        end_session: EndSession,
        step_logs: Path | None,
    ) -> None:
        """files: the folder of their checkpoints, which `disk` writes; None stores nothing. The others: see `TrainedGroup`."""
        self._threads = threads
        self._allowed = allowed
        self._limits = limits
        self._device = device
        self._groups = {
            config.name: TrainedGroup(
                config,
                GroupStore(config, None if files is None else files.folder(config.name), disk),
                threads,
                self._build,
                end_session,
                step_logs,
            )
            for config in configured
        }

    @property
    def all(self) -> list[TrainedGroup]:
        """List them."""
        return list(self._groups.values())

    def check_may_open(self, request: pb.OpenSessionRequest) -> None:
        """Refuse a session that would be a member's and has no place in its group. Raises ConfigError or StatusError.

        A stranger learns nothing of a group, not even whether there is one.
        """
        if not request.HasField("group"):
            return
        wanted, subject = request.group, caller().subject
        group = self._groups.get(wanted.name)
        if group is None or not group.config.admits(subject):
            raise StatusError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this trainer has no group {wanted.name[:63]!r} for {subject or 'this caller'!r}; its operator names "
                "groups and their subjects in [[groups]]",
            )
        name, size, ranks = group.config.name, group.config.size, group.config.ranks
        if wanted.size not in (0, size):
            raise ConfigError(f"group {name!r} has {size} members, and this one expects {wanted.size}")
        if wanted.rank not in ranks:
            raise ConfigError(f"rank {wanted.rank} is none of group {name!r}; the ranks are 0 to {ranks[-1]}")
        if wanted.may_end and group.config.leave_out_seconds is not None:
            raise ConfigError(
                f"training.early_stop is set, and group {name!r} goes on without late members (leave_out_seconds), so that no "
                "step is the last one of all; leave one of them out"
            )
        with _statuses():
            group.seats.check_free(wanted.rank, subject)

    def taker_of_gradients(self, request: pb.OpenSessionRequest, session_id: str) -> Callable[[Parcel], None] | None:
        """Return what takes the gradients of a session that is about to be built; None if it trains by itself."""
        if not request.HasField("group"):
            return None
        return partial(self._groups[request.group.name].take_gradient, request.group.rank, session_id)

    async def occupy(self, session: Session) -> int:
        """Give a session that was built its seat, and return the steps that the group does; 0 if it trains by itself.

        A session that had the rank and has lost its member ends. Raises ConfigError, StatusError or StorageError, and changes
        nothing, for a member that would train something else.
        """
        if not session.is_member:
            return 0
        changing, placement = changing_blocks(session.judge.chain), session.worker.placement
        theirs = Agreement.of(session.request, session.judge.recipe, placement, changing)
        owners = list(dict.fromkeys(placement.owner(block) for block in changing))
        seat = Seat(
            session.request.group.rank,
            caller().subject,
            session,
            decides=owners[:1] == [session.worker.name],
            other_trainers=len(owners) - 1,
            is_lossy=any(
                route.cargo is Cargo.WEIGHT_GRADIENT and codec_spec(name).lossy
                for route, name in placement.codecs.items()
            ),
        )
        with _statuses():
            return await self._group_of(session).occupy(seat, theirs)

    def leaves_out_late(self, session: Session) -> bool:
        """Tell whether a session's group goes on without late members."""
        return session.is_member and self._group_of(session).config.leave_out_seconds is not None

    async def begin(self, session: Session, beginning: pb.Beginning) -> pb.RestoreWorkerResponse:
        """Have a member begin with the weights and at the step that its group says, and answer with these. Its link ends.

        Raises IsthmusError if it may not begin.
        """
        group, wanted = self._group_of(session), beginning.group
        life = Life.read(wanted.life, len(group.config.ranks)) if wanted.HasField("life") else None
        with _statuses():
            begun = await group.begin(session, life, read_positions(wanted.others), beginning.step)
        return pb.RestoreWorkerResponse(
            life=begun.life.message, step=begun.step, joins=begun.joins, awaited=begun.awaited
        )

    async def leave(self, session: Session, last_step: int, *, ends_group: bool) -> None:
        """Have a member, or with `ends_group` all, take part in no step after its last one. Raises IsthmusError if that
        cannot be."""
        _check_member(session, "leave")
        with _statuses():
            await self._group_of(session).leave(session, last_step, ends_group=ends_group)

    async def join(self, session: Session, life: int, first_step: int) -> None:
        """Have a member take part in all steps of a life from this one on. Raises IsthmusError if that cannot be."""
        _check_member(session, "join")
        with _statuses():
            await self._group_of(session).join(session, life, first_step)

    async def reach(self, session: Session, life: int, step: int) -> None:
        """Wait until a member's group is at a step of a life. Raises StatusError where it is not in some seconds."""
        with _statuses():
            await self._group_of(session).reach(life, step)

    async def position(self, session: Session) -> pb.GroupPosition | None:
        """Tell where a session's group is here; None if it trains by itself. Raises StorageError."""
        if not session.is_member:
            return None
        return (await self._group_of(session).position()).message

    async def averages(self, session: Session, block: int) -> BlockTensors:
        """Copy what a member's group has besides the weights that the member has: the averages of those of a block."""
        return await self._group_of(session).averages(block) if session.is_member else {}

    async def vacate(self, session: Session) -> None:
        """Note that a session has ended. Its group, if it has one, waits for its member, unless all is done."""
        if session.is_member:
            await self._group_of(session).vacate(session)

    async def close(self) -> None:
        """End all groups."""
        await asyncio.gather(*(group.close() for group in self.all))

    def _group_of(self, member: Session) -> TrainedGroup:
        return self._groups[member.request.group.name]

    async def _build(self, agreement: Agreement, members: int) -> HeldBlocks:
        return await self._threads.build(self._built, agreement, members)

    def _built(self, agreement: Agreement, members: int) -> HeldBlocks:
        """Build the blocks of a group. Computes. Raises as `open_model` does, and StatusError for too much memory."""
        chain, recipe, *_ = open_model(agreement.request, self._allowed, self._limits)
        parameters = [value for block in agreement.blocks for value in chain.blocks[block].named_parameters().values()]
        gradients = sum(value.nbytes for value in parameters if value.requires_grad)
        in_flight = members * (agreement.staleness + 1)
        updates = update_memory(recipe)
        # What members have, where a codec keeps it apart: the parameters that have gradients.
        of_members = gradients if agreement.weights_codec != "raw" else 0
        # A checkpoint that is being written, and one that waits for that.
        copies = 2 * (state_copy_bytes(chain.module, updates) + of_members)
        self._limits.check_memory(state_bytes(chain.module, updates) + of_members + copies + in_flight * gradients)
        return HeldBlocks(chain, recipe, self._device, agreement.blocks)


def _check_member(session: Session, what: str) -> None:
    """Refuse to do something in a group for a session that trains by itself. Raises StatusError."""
    if not session.is_member:
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, f"session {session.id} is in no group that it could {what}")


@contextmanager
def _statuses() -> Iterator[None]:
    """Turn the refusals of a group into statuses."""
    try:
        yield
    except NotNowError as refusal:
        raise StatusError(grpc.StatusCode.UNAVAILABLE, str(refusal), refusal.retry_after_seconds) from refusal
    except SeatLostError as refusal:
        raise StatusError(grpc.StatusCode.NOT_FOUND, str(refusal)) from refusal
    except RankOwnedError as refusal:
        raise StatusError(grpc.StatusCode.ALREADY_EXISTS, str(refusal)) from refusal
