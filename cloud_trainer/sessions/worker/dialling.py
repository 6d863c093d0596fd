"""The links that the worker of a session has dialled: those of training and those of an evaluation."""

from collections.abc import Callable
from functools import partial

from cloud_trainer.peers.peer_links import Failure, PeerLinks


class Dialling:
    """Used on the event loop."""

    def __init__(self, on_lost: Callable[[int], None]) -> None:
        """on_lost: told for which evaluation (0: training) there are links that cannot be kept up."""
        self._on_lost = on_lost
        self._links: dict[int, PeerLinks] = {}
        """By the evaluation that they are for; those that cannot be kept up stay until somebody ends them."""

    async def dial(self, evaluation: int, links: PeerLinks) -> None:
        """End what was dialled before for the same, and dial these."""
        before, self._links[evaluation] = self._links.get(evaluation), links
        if before is not None:
            await before.stop()
        if self._links.get(evaluation) is links:  # else somebody has ended them meanwhile
            links.failure.add_done_callback(partial(self._note_lost, evaluation))
            links.dial()

    @property
    def missing(self) -> list[str]:
        """The workers to which training should have a link, and has none now."""
        return self._links[0].missing if 0 in self._links else []

    def failure(self, evaluation: int) -> BaseException | None:
        """Why links for this cannot be kept up; None while they can, and where there are none."""
        links = self._links.get(evaluation)
        return links.failure.exception() if links is not None and links.failure.done() else None

    async def end(self, evaluation: int) -> None:
        """End what was dialled for this, if there is anything."""
        if (links := self._links.pop(evaluation, None)) is not None:
            await links.stop()

    def _note_lost(self, evaluation: int, ended: Failure) -> None:
        if not ended.cancelled():
            self._on_lost(evaluation)
