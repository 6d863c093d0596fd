"""Trainers that this device cannot reach by itself: they are dialled through other trainers that can.

A lost link is dialled again that way, and nobody goes back. Then the run may be handed over to the trainer on the way, which is
in reach.
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

import structlog

from edge_agent.coordinator import Action, WaySought, WayTaken
from edge_agent.experiment.experiment import trainers_with_blocks
from edge_agent.planner_names import FIXED
from edge_agent.sessions.joining import OTHERS_SECONDS
from edge_agent.sessions.open_session import OpenSession
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.events import LinkLost, LinkUp, Relayed
from shared.client.backoff import Backoff
from shared.client.credentials import trainer_access
from shared.client.trainer import TrainerClient
from shared.errors import ConfigError, DataError, IsthmusError, UnreachableError
from shared.events import Emit, Events

_log = structlog.get_logger(__name__)
LOOK_SECONDS = 0.2
"""Interval of looks for trainers that cannot be reached; a link that is lost for less is dialled again by itself."""
DIRECT_SECONDS = 1.2
"""Time in which a trainer must answer by itself, once another one says that it can reach it. A new connection takes three round
trips with TLS, so links of up to 0.4 s are dialled by themselves."""
FIRST_SECONDS, LONGEST_SECONDS = 0.5, 15.0
"""Waits between attempts to find a way: the ceiling of the first one, and of all."""


class RelayedTrainers:
    """The trainers of one session that are reached through others. Used on the event loop."""

    def __init__(self, session: OpenSession, deployer: Deployer, events: Events) -> None:
        """events: of the training loop."""
        self._session = session
        self._deployer = deployer
        self._emit: Emit = events.emit
        self._ways: dict[str, str] = {}
        """The trainer on the way, by the trainer that is reached through it."""
        self._down: set[str] = set()
        """Trainers to which a link is down."""
        self._waits: dict[str, tuple[float, Backoff]] = {}
        """By trainer whose link is not up yet, the time of the next attempt, by time.monotonic."""
        config = session.experiment.config
        self._is_chosen = config.engine.profile is not None and config.choice.policy != FIXED
        """True if an engine chooses the trainer."""
        events.subscribe(LinkLost, lambda event: self._down.add(event.peer))
        events.subscribe(LinkUp, self._note_up)

    def _note_up(self, event: LinkUp) -> None:
        self._down.discard(event.peer)
        self._waits.pop(event.peer, None)

    async def keep(self) -> None:
        """Find ways to trainers that cannot be reached, until this is cancelled."""
        if len(self._session.experiment.config.all_trainers) < 2:
            return
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            members = self._session.members
            for name in self._ways.keys() & {*members.candidates}:
                await self._go(name, None)  # It was released.
            missed = members.needed if self._session.retry.reasons else [*self._down.intersection(members)]
            for name in missed:
                if time.monotonic() >= self._waits.get(name, (0.0, None))[0]:
                    await self._look(name)

    async def _look(self, name: str) -> None:
        """Ask for a way to a trainer, and take the one that the coordinator says."""
        members = self._session.members
        client, others = members.client(name), [one.name for one in self._session.experiment.config.all_trainers]
        others = [
            other for other in others if other not in self._ways and members.client(other).address != client.address
        ]
        reaches = await self._first_that_reaches(client.address, others)
        told = WaySought(await self._answers_by_itself(client.address), is_reached=reaches is not None)
        match self._session.coordinator.tell(told):
            case Action.DIAL_ITSELF:
                on_the_way = None
            case Action.RELAY:
                on_the_way = reaches
            case _:
                on_the_way = self._ways.get(name)
        if self._ways.get(name) != on_the_way:
            try:
                await self._go(name, on_the_way)
            except UnreachableError as failure:
                _log.warning("no way through another trainer", trainer=name, reason=str(failure))
            else:
                if on_the_way is not None:
                    self._hand_over(name, on_the_way)
        self._look_later(name)

    def _look_later(self, name: str) -> None:
        """Look for no other way to a trainer for a while, which is longer each time until its link is up."""
        _, backoff = self._waits.get(name, (0.0, Backoff(FIRST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS)))
        self._waits[name] = time.monotonic() + backoff.next_seconds(0.0), backoff

    async def _first_that_reaches(self, address: str, names: Iterable[str]) -> str | None:
        """Ask other trainers whether they can dial an address. Returns the first that can; None if none can."""
        asked = [asyncio.create_task(self._reaches(name, address)) for name in names]
        try:
            for answer in asyncio.as_completed(asked):
                if (name := await answer) is not None:
                    return name
            return None
        finally:
            for asking in asked:
                asking.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _reaches(self, name: str, address: str) -> str | None:
        with suppress(IsthmusError, TimeoutError):
            async with asyncio.timeout(OTHERS_SECONDS):
                (check,) = await self._session.members.client(name).check_peers([address], self._session.id)
                return name if check.allowed and not check.reason else None
        return None

    async def _answers_by_itself(self, address: str) -> bool:
        """Tell whether a trainer answers where it is dialled itself, by a connection of its own."""
        config = self._session.experiment.config
        trainer = next(one for one in config.all_trainers if one.address == address)
        try:
            access = trainer_access(trainer, config.tls)
            async with asyncio.timeout(DIRECT_SECONDS), TrainerClient(trainer, config.link, access=access) as client:
                await client.check_answers()
        except (UnreachableError, TimeoutError):
            return False
        except IsthmusError:  # Any answer shows that it is in reach.
            pass
        return True

    async def _go(self, name: str, on_the_way: str | None) -> None:
        """Dial a trainer through another one, or itself."""
        session, members = self._session, self._session.members
        other = None if on_the_way is None else members.client(on_the_way)
        await members.client(name).go_through(other, session.id)
        if on_the_way is None:
            _log.info("a trainer is dialled by itself again", trainer=name)
        else:
            _log.warning("a trainer is out of reach; going through another one", trainer=name, through=on_the_way)
        self._ways.pop(name, None)
        if on_the_way is not None:
            self._ways[name] = on_the_way
        self._emit(Relayed(dict(self._ways)))

    def _hand_over(self, name: str, successor: str) -> None:
        """Request that the trainer on the way gets all that the other one has, where the coordinator says so."""
        deployer = self._deployer
        holding, is_chosen = (
            trainers_with_blocks(deployer.placement),
            self._is_chosen or deployer.pinned_trainer is not None,
        )
        told = WayTaken(is_chosen, has_blocks=name in holding, is_free=successor not in holding)
        if self._session.coordinator.tell(told) is not Action.HAND_OVER:
            return
        try:
            wanted = deployer.experiment.handed_over(deployer.placement, successor, name)
        except (ConfigError, DataError) as refusal:
            _log.warning("a trainer on the way may not take over", trainer=successor, reason=str(refusal))
        else:
            deployer.want(wanted, Chooser.RELAY)
