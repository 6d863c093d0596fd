"""The answer to agents that may open a session: what it would find here."""

from cloud_trainer.config import TrainerConfig
from cloud_trainer.rpc.shutdown import TrainerShutdown
from cloud_trainer.sessions.busy_share import BusyShare
from cloud_trainer.sessions.fencing import check_version
from cloud_trainer.sessions.registry import SessionRegistry
from shared.factory import is_allowed
from shared.transport.rpc.refusing import Context
from shared.wire.isthmus.v1 import trainer_pb2 as pb


class Probing:
    """The RPC of one trainer about none of its sessions."""

    def __init__(
        self, config: TrainerConfig, sessions: SessionRegistry, shutdown: TrainerShutdown, busy_share: BusyShare
    ) -> None:
        """busy_share: of the compute thread."""
        self._config = config
        self._sessions = sessions
        self._shutdown = shutdown
        self._busy_share = busy_share

    async def probe(self, request: pb.ProbeRequest, _context: Context) -> pb.ProbeResponse:
        """Tell the caller what a new session would find. Raises StatusError for another protocol version."""
        check_version(request.protocol_version)
        return pb.ProbeResponse(
            stopping=self._shutdown.begun,
            model_allowed=is_allowed(request.factory, self._config.models.allowed),
            sessions=len(self._sessions),
            free_sessions=self._sessions.free_for_caller,
            session_bytes=self._config.server.max_session_bytes,
            busy=self._busy_share.of_last_seconds(),
        )
