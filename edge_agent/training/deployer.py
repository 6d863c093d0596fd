"""Changes of a running session's placement: at the next step boundary, drained.

The decision engine and operators both use this.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from edge_agent.experiment.building import at_cut, chain_at_cuts, codecs_here, deployment_of, has_one_cut
from edge_agent.experiment.placing import configured_codecs
from edge_agent.sessions.device_worker import DeviceWorker
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.worker_calls import Tickets
from edge_agent.training.attempts import can_be_mended, is_refusal
from edge_agent.training.events import Migrated, MigrationFailed
from edge_agent.training.placement_change import change_placement
from edge_agent.training.step_boundary import StepBoundary
from shared.client.trainer import TrainerClient
from shared.codec import codec_by_name
from shared.concurrency.tasks import gathered
from shared.errors import FencedError, GoneError, IsthmusError, RefusedError, StoppedError, UnreachableError
from shared.events import Emit
from shared.placement import Cargo, Deployment, Placement

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Wish:
    """A requested placement."""

    placement: Placement
    give_up_seconds: float | None = None
    waiting: "list[asyncio.Future[Placement]]" = field(default_factory=list)
    """Callers that are told the outcome."""

    def came(self, placement: Placement) -> None:
        """Tell the callers that it is in force."""
        for waiting in self.waiting:
            if not waiting.done():  # its caller may have gone
                waiting.set_result(placement)

    def failed(self, failure: IsthmusError) -> None:
        """Tell the callers why it is not in force, and will not be."""
        for waiting in self.waiting:
            if not waiting.done():
                waiting.set_exception(failure)


class Deployer:
    """The changer of the placement, for an engine or an operator. Of several requests the last counts. Used on the
    event loop."""

    def __init__(
        self,
        session: OpenSession,
        device: DeviceWorker,
        boundary: StepBoundary,
        emit: Emit,
        may_change: Callable[[], bool],
    ) -> None:
        """may_change: True if a request may come into force at the next boundary. Otherwise the boundary after it is soon."""
        self._session = session
        self._device = device
        self._boundary = boundary
        self._emit = emit
        self._may_change = may_change
        self._wish: _Wish | None = None
        self._changing: _Wish | None = None
        """Request that is coming into force now."""
        self._codecs = configured_codecs(session.experiment.config)
        """Codecs of each kind of tensor on this device's links."""

    @property
    def placement(self) -> Placement:
        """Return the requested placement, or the one in force."""
        return self._session.placement if (last := self._wish or self._changing) is None else last.placement

    @property
    def deployment(self) -> Deployment:
        """Return its summary."""
        return deployment_of(self.placement, self._codecs)

    @property
    def deployment_in_force(self) -> Deployment:
        """Return the summary of the placement in force."""
        return deployment_of(self._session.placement, self._codecs)

    @property
    def has_cut(self) -> bool:
        """Tell whether two workers train on one cut, which can be moved."""
        return has_one_cut(self.placement)

    @property
    def moving(self) -> bool:
        """Tell whether blocks will move, or are moving."""
        tiles = self._session.placement.tiles
        return any(wish is not None and wish.placement.tiles != tiles for wish in (self._wish, self._changing))

    @property
    def wanted_edge_blocks(self) -> int | None:
        """Return the number of blocks here after the moves that are under way or requested; None without any."""
        return self.deployment.edge_blocks if self.moving else None

    @property
    def is_wanted(self) -> bool:
        """Tell whether another placement will come into force, now or later."""
        return self._wish is not None

    @property
    def is_due(self) -> bool:
        """Tell whether another placement will come into force, and may at this boundary."""
        return self._wish is not None and self._may_change()

    def change(
        self, *, staleness: int | None = None, codec: str | None = None, downlink_codec: str | None = None
    ) -> None:
        """Change K, or the codecs of all features or all error gradients. Raises ConfigError for an unknown codec.

        If no such tensor crosses now, the codec holds from the next move on.
        """
        before = self.placement
        named = {Cargo.FEATURE: codec, Cargo.ERROR_GRADIENT: downlink_codec}
        chosen = {cargo: name for cargo, name in named.items() if name is not None}
        for name in chosen.values():
            codec_by_name(name)
        self._codecs |= chosen
        codecs = {route: chosen.get(route.cargo, name) for route, name in before.codecs.items()}
        staleness = before.staleness if staleness is None else staleness
        if (codecs, staleness) != (before.codecs, before.staleness):
            self._want(replace(before, codecs=codecs, staleness=staleness))

    def move(self, cut: int, give_up_seconds: float | None = None) -> None:
        """Move the cut of two workers. Raises ModelError for a cut out of range, ConfigError if there is no single cut.

        Raises DataError for labels that may not leave. give_up_seconds: the cut stays if the blocks are still under way
        after this time.
        """
        codecs = self._codecs | codecs_here(self.placement)
        self._want(at_cut(self.placement, cut, self._session.experiment, codecs), give_up_seconds)

    def move_cuts(self, cuts: tuple[int, ...], feature_codecs: tuple[str, ...] | None = None) -> None:
        """Move the cuts of a chain. feature_codecs: one for each link from here on; None leaves them unchanged.

        Raises ConfigError if the placement is no chain or cannot have these cuts, DataError for labels that may not leave.
        """
        self._want(chain_at_cuts(self.placement, cuts, feature_codecs, self._session.experiment, self._codecs))

    def place(self, document: object) -> Placement:
        """Request the placement of a decoded document (isthmus.placement/v1), and return it.

        Raises ConfigError for an invalid placement, and DataError for one that sends data that may not leave.
        """
        self._want(self._session.experiment.placed(document, self.placement))
        return self.placement

    async def placed(self, document: object) -> Placement:
        """Request the same, judged beside the event loop. Waits until it is in force and returns it.

        Raises StoppedError if another request replaces it, or the run ends, and RefusedError if it is impossible.
        """
        session, before = self._session, None
        while before is not self.placement:  # The document may leave unchanged what another request changes meanwhile.
            before = self.placement
            wanted = await session.threads.compute.run(session.experiment.placed, document, before)
        self._want(wanted)
        if (last := self._wish or self._changing) is None:
            return self._session.placement
        came: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        last.waiting.append(came)
        return await came

    def want_nothing(self, reason: str) -> None:
        """Forget the request. reason: a sentence."""
        if (wish := self._wish) is not None:
            self._wish = None
            _log.warning("the change of placement is dropped", version=wish.placement.version, reason=reason)
            wish.failed(StoppedError(f"the placement does not come into force: {reason}"))

    @property
    def newcomers(self) -> list[str]:
        """List the trainers without blocks that will have some under the requested placement."""
        return (
            []
            if (wish := self._wish) is None
            else self._session.members.newcomers(self._session.placement, wish.placement)
        )

    async def back(self) -> list[str]:
        """List the trainers that were left out and answer again."""
        asked = {name: member.client for name, member in self._session.members.left_out.items()}
        answers = await gathered(*(_answers(client) for client in asked.values()))
        return [name for name, answered in zip(asked, answers, strict=True) if answered]

    def stay(self, reason: str) -> None:
        """Give up the request, which cannot come into force now."""
        wish, self._wish = self._wish, None
        if wish is not None:
            self._give_up(wish, reason)

    async def change_now(self, next_step: int) -> Tickets | None:
        """Put the request into force, with nothing in flight and no link up. Returns the trainers' new tickets.

        Returns None if the placement stays: its blocks cannot move, or there is no request any more. Raises the
        IsthmusError of a failure. If the failure can be mended, the request stands once all trainers are joined again.
        """
        if (wish := self._wish) is None:
            return None
        self._wish = None
        # Another may have come into force since the request.
        wish.placement = replace(wish.placement, version=self._session.placement.version + 1)
        self._changing = wish
        try:
            return await self._change(wish, next_step)
        finally:
            self._changing = None

    async def _change(self, wish: _Wish, next_step: int) -> Tickets | None:
        moves_blocks = wish.placement.tiles != self._session.placement.tiles
        try:
            tickets, seconds = await change_placement(
                self._session, self._device, wish.placement, next_step, wish.give_up_seconds
            )
        except TimeoutError:
            self._give_up(wish, f"the blocks were still under way after {wish.give_up_seconds:.1f} s")
            return None
        except IsthmusError as failure:
            if can_be_mended(failure) and not is_refusal(failure):
                self._want_again(wish)
                raise
            is_schedules = not moves_blocks and not wish.waiting
            if is_schedules or isinstance(failure, UnreachableError | FencedError | GoneError):
                wish.failed(StoppedError(f"the placement did not come into force: {failure}"))
                raise
            self._give_up(wish, str(failure))
            return None
        except BaseException:
            wish.failed(StoppedError("the run ended before the placement came into force"))
            raise
        wish.came(wish.placement)
        if moves_blocks:
            self._emit(Migrated(seconds))
        return tickets

    def _want_again(self, wish: _Wish) -> None:
        if self._wish is None:
            self._wish = wish
        else:
            wish.failed(_superseded(self._wish.placement))

    def _give_up(self, wish: _Wish, reason: str) -> None:
        self._emit(MigrationFailed())
        _log.warning("the placement stays", version=self._session.placement.version, reason=reason)
        wish.failed(RefusedError(f"the placement stays as it is: {reason}"))

    def _want(self, placement: Placement, give_up_seconds: float | None = None) -> None:
        """Request this placement, to follow one that is coming into force now. Callers that wait for an earlier request
        are told."""
        base = self._session.placement if self._changing is None else self._changing.placement
        placement, before = replace(placement, version=base.version + 1), self._wish
        if before is not None and before.placement == placement:
            before.give_up_seconds = give_up_seconds
            return
        self._wish = None if replace(placement, version=base.version) == base else _Wish(placement, give_up_seconds)
        if before is not None:
            before.failed(_superseded(placement))
        if self._wish is not None:
            self._boundary.request()


def _superseded(by: Placement) -> StoppedError:
    return StoppedError(
        f"another placement was asked for before this one came into force: version {by.version} differs from it"
    )


async def _answers(client: TrainerClient) -> bool:
    try:
        await client.check_serving()
    except IsthmusError:
        return False
    return True
