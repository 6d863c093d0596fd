"""The links of a session at one trainer: those that peers have dialled, and those that it has dialled."""

from functools import partial

from cloud_trainer.peers.peer_links import Failure, PeerLinks
from cloud_trainer.sessions.attachment import Attachment
from cloud_trainer.sessions.tickets import Tickets


class SessionLinks:
    """Links of training (0) and of evaluations, by their numbers. Used on the event loop."""

    def __init__(self, session_id: str) -> None:
        self.attachment = Attachment(session_id)
        self.tickets = Tickets(session_id)
        self._dialled: dict[int, PeerLinks] = {}
        """Dialled links by evaluation. Links that failed for good stay here until they are ended."""

    @property
    def missing(self) -> list[str]:
        """List the workers that this trainer dials for training, and to which it has no link now."""
        return self._dialled[0].missing if 0 in self._dialled else []

    async def dial(self, evaluation: int, links: PeerLinks) -> None:
        """End the links dialled before for the same evaluation, and dial these."""
        before, self._dialled[evaluation] = self._dialled.get(evaluation), links
        if before is not None:
            await before.stop()
        if self._dialled.get(evaluation) is links:  # otherwise they were ended meanwhile
            links.failure.add_done_callback(partial(self._note_lost, evaluation))
            links.dial()

    def failure(self, evaluation: int) -> BaseException | None:
        """Return the error that ended dialled links for good; None while they work, and if there are none."""
        links = self._dialled.get(evaluation)
        return links.failure.exception() if links is not None and links.failure.done() else None

    async def note_ended(self, evaluation: int) -> None:
        """Note that a peer's link here ended well. After the last one, the links that this trainer dialled end."""
        if not self.attachment.is_attached_for(evaluation):
            await self._end_dialled(evaluation)

    async def end(self, evaluation: int) -> None:
        """End all links of an evaluation, and refuse further dialling for it."""
        self.tickets.withdraw(evaluation)
        await self.attachment.end_evaluation(evaluation)
        await self._end_dialled(evaluation)

    async def end_training(self) -> None:
        """End all links of training: those that peers have dialled, and those that this trainer has dialled."""
        self.tickets.withdraw(0)
        self.tickets.withdraw_offers()
        await self.attachment.end()
        await self._end_dialled(0)

    async def _end_dialled(self, evaluation: int) -> None:
        if (links := self._dialled.pop(evaluation, None)) is not None:
            await links.stop()

    def _note_lost(self, evaluation: int, ended: Failure) -> None:
        if not ended.cancelled():
            self.attachment.give_up(evaluation)
