"""Changes the placement of a running session: at the next step boundary, drained.

The decision engine and an operator both go through here.
"""

from dataclasses import replace

import structlog

from edge_agent.experiment.building import at_cut, chain_at_cuts, codecs_here, deployment_of, has_one_cut
from edge_agent.experiment.placing import configured_codecs
from edge_agent.sessions.open_session import OpenSession, Tickets
from edge_agent.training.attempts import can_be_mended, is_refusal
from edge_agent.training.listener import RunListener
from edge_agent.training.placement_change import change_placement
from edge_agent.training.step_boundary import StepBoundary
from shared.client.trainer import TrainerClient
from shared.codec import codec_by_name
from shared.concurrency.tasks import gathered
from shared.errors import FencedError, GoneError, IsthmusError, UnreachableError
from shared.placement import Cargo, Deployment, Placement, held_blocks

_log = structlog.get_logger(__name__)


class Deployer:
    """Changes what an engine or an operator asks for. Used on the event loop."""

    def __init__(self, session: OpenSession, boundary: StepBoundary, listener: RunListener) -> None:
        self._session = session
        self._boundary = boundary
        self._listener = listener
        self._wanted: Placement | None = None
        self._codecs = configured_codecs(session.experiment.config)
        """What is sent with which codec, where anything of the kind crosses this device's links."""
        self._give_up_seconds: float | None = None
        self._is_moving = False

    @property
    def placement(self) -> Placement:
        """What is in force, or wanted."""
        return self._wanted or self._session.placement

    @property
    def deployment(self) -> Deployment:
        """The same in few numbers."""
        return deployment_of(self.placement, self._codecs)

    @property
    def deployment_in_force(self) -> Deployment:
        """What is in force, in few numbers."""
        return deployment_of(self._session.placement, self._codecs)

    @property
    def has_cut(self) -> bool:
        """Whether two workers train on one cut, which can be moved."""
        return has_one_cut(self.placement)

    @property
    def moving(self) -> bool:
        """Whether blocks are to move, or move now."""
        wanted = self._wanted
        return self._is_moving or (wanted is not None and wanted.tiles != self._session.placement.tiles)

    @property
    def wanted_edge_blocks(self) -> int | None:
        """How many blocks will be here once those that move, or wait for it, have moved; None where none do."""
        return self.deployment.edge_blocks if self.moving else None

    @property
    def is_wanted(self) -> bool:
        """Whether another placement is to come into force."""
        return self._wanted is not None

    def change(
        self, *, staleness: int | None = None, codec: str | None = None, downlink_codec: str | None = None
    ) -> None:
        """Change K, or the codecs of all features or all error gradients. Raises ConfigError for a codec that is not there.

        Where nothing of the kind crosses now, the codec holds from the next move on.
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
        """Move the cut of two workers. Raises ModelError for a cut out of range, ConfigError where there is no one cut.

        Raises DataError for labels that may not leave. give_up_seconds: when the blocks are still under way after so long, the
        cut stays.
        """
        codecs = self._codecs | codecs_here(self.placement)
        self._want(at_cut(self.placement, cut, self._session.experiment, codecs))
        self._give_up_seconds = give_up_seconds

    def move_cuts(self, cuts: tuple[int, ...], feature_codecs: tuple[str, ...] | None = None) -> None:
        """Move the cuts of a chain. feature_codecs: one for each link from here on; None leaves them as they are.

        Raises ConfigError where the placement is no chain or cannot be cut so, DataError for labels that may not leave.
        """
        self._want(chain_at_cuts(self.placement, cuts, feature_codecs, self._session.experiment, self._codecs))

    def place(self, document: object) -> Placement:
        """Have every worker run what a decoded document says (isthmus.placement/v1). Returns what is wanted.

        Raises ConfigError for a placement that cannot be, and DataError for one under which something leaves that may not.
        """
        before = self.placement
        self._want(self._session.experiment.placed(document, before))
        return self.placement

    def want_nothing(self) -> None:
        """Forget what was wanted: it was for other workers than there are now."""
        if self._wanted is not None:
            _log.warning("the change of placement is dropped", version=self._wanted.version)
        self._wanted = None

    @property
    def returning(self) -> list[str]:
        """The trainers that were left out and are to have blocks again by what is wanted."""
        left_out = self._session.left_out
        return [] if self._wanted is None else [name for name in left_out if held_blocks(self._wanted, name)]

    async def back(self) -> list[str]:
        """The trainers that were left out and answer again."""
        asked = {name: member.client for name, member in self._session.left_out.items()}
        answers = await gathered(*(_answers(client) for client in asked.values()))
        return [name for name, answered in zip(asked, answers, strict=True) if answered]

    def stay(self, reason: str) -> None:
        """Give up what is wanted: it cannot come into force now."""
        self._wanted = None
        self._note_staying(reason)

    async def change_now(self, next_step: int) -> Tickets | None:
        """Put into force what is wanted, with nothing in flight and no link up. Returns the trainers' new tickets.

        Returns None where blocks were to move and cannot: then what is in force stays. Raises the IsthmusError that it fails
        with; where that can be mended, the same is wanted once all trainers are joined again.
        """
        wanted, self._wanted = self._wanted, None
        assert wanted is not None, "something is wanted"
        wanted = replace(wanted, version=self._session.placement.version + 1)  # another may have come into force since
        moves_blocks = wanted.tiles != self._session.placement.tiles
        self._is_moving = moves_blocks
        try:
            tickets, seconds = await change_placement(self._session, wanted, next_step, self._give_up_seconds)
        except TimeoutError:
            self._note_staying(f"the blocks were still under way after {self._give_up_seconds:.1f} s")
            return None
        except IsthmusError as failure:
            if can_be_mended(failure) and not is_refusal(failure):
                self._wanted = self._wanted or wanted
                raise
            if not moves_blocks or isinstance(failure, UnreachableError | FencedError | GoneError):
                raise
            self._note_staying(str(failure))
            return None
        finally:
            self._is_moving, self._give_up_seconds = False, None
        if moves_blocks:
            self._listener.migrated(seconds)
        return tickets

    def _note_staying(self, reason: str) -> None:
        self._listener.migration_failed()
        _log.warning("the placement stays", version=self._session.placement.version, reason=reason)

    def _want(self, placement: Placement) -> None:
        in_force = self._session.placement
        self._wanted = replace(placement, version=in_force.version + 1)
        if replace(placement, version=in_force.version) == in_force:
            self._wanted = None
        self._boundary.request()


async def _answers(client: TrainerClient) -> bool:
    try:
        await client.check_serving()
    except IsthmusError:
        return False
    return True
