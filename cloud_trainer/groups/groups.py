"""All groups of a trainer, and who may be a member."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import torch

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore
from cloud_trainer.groups.member_seat import MemberSeat
from cloud_trainer.groups.seats import EndSession
from cloud_trainer.groups.trained_group import TrainedGroup
from cloud_trainer.sessions.building import open_model
from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.threads import TrainerThreads
from shared.checkpoint import Files
from shared.concurrency.threads import WorkerThread
from shared.model.footprint import state_bytes, state_copy_bytes
from shared.training.held_blocks import HeldBlocks
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
                GroupStore(config.name, None if files is None else files.folder(config.name), disk),
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

    def seat_for(self, request: pb.OpenSessionRequest) -> MemberSeat | None:
        """Return a seat for the session that a request opens; None if it trains by itself. Raises ConfigError or StatusError.

        A stranger learns nothing of a group, not even whether there is one.
        """
        if not request.HasField("group"):
            return None
        group, subject = self._groups.get(request.group.name), caller().subject
        if group is None or not group.admits(subject):
            raise StatusError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this trainer has no group {request.group.name[:63]!r} for {subject or 'this caller'!r}; its operator names "
                "groups and their subjects in [[groups]]",
            )
        return group.seat_for(request.group)

    async def close(self) -> None:
        """End all groups."""
        await asyncio.gather(*(group.close() for group in self.all))

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
