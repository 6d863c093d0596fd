"""The links of a session at one trainer: those on which it is dialled, by whom, and those that it has dialled."""

from functools import partial

from cloud_trainer.peers.peer_links import Failure, PeerLinks
from cloud_trainer.sessions.attachment import Attachment
from cloud_trainer.sessions.tickets import Tickets


class SessionLinks:
    """Links of training (0) and of an evaluation, by its number. Used on the event loop."""

    def __init__(self, session_id: str) -> None:
        self.attachment = Attachment(session_id)
        self.tickets = Tickets(session_id)
        self._dialled: dict[int, PeerLinks] = {}
        """By the evaluation that they are for; those that cannot be kept up stay until somebody ends them."""

    @property
    def missing(self) -> list[str]:
        """The workers that this trainer dials for training, and to which it has no link now."""
        return self._dialled[0].missing if 0 in self._dialled else []

    async def dial(self, evaluation: int, links: PeerLinks) -> None:
        """End what was dialled before for the same, and dial these."""
        before, self._dialled[evaluation] = self._dialled.get(evaluation), links
        if before is not None:
            await before.stop()
        if self._dialled.get(evaluation) is links:  # else somebody has ended them meanwhile
            links.failure.add_done_callback(partial(self._note_lost, evaluation))
            links.dial()

    def failure(self, evaluation: int) -> BaseException | None:
        """Why what was dialled cannot be kept up; None while it can, and where nothing was."""
        links = self._dialled.get(evaluation)
        return links.failure.exception() if links is not None and links.failure.done() else None

    async def note_ended(self, evaluation: int) -> None:
        """A link on which this trainer was dialled was ended well; after the last one, those dialled here end."""
        if not self.attachment.is_attached_for(evaluation):
            await self._end_dialled(evaluation)

    async def end(self, evaluation: int) -> None:
        """End all links of an evaluation, and let nobody dial for it any more."""
        self.tickets.withdraw(evaluation)
        await self.attachment.end_evaluation(evaluation)
        await self._end_dialled(evaluation)

    async def end_training(self) -> None:
        """End all links on which this trainer is dialled, and those that it has dialled for training."""
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
