"""Peers of a trainer that asks for certificates and tokens: friends of several kinds, and every kind of stranger."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from cloud_trainer.control.certificates import Identity, Signed, issue, make_authority
from cloud_trainer.rpc.access import SCOPES
from shared.transport.auth.scopes import AN_AGENTS, Scope
from shared.transport.auth.tls import TlsFiles, channel_credentials
from shared.transport.auth.tokens import make_token
from shared.transport.rpc.call_status import CallStatus
from shared.transport.stream.packets import serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import control_pb2 as control
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.wire import SERVICE, block_packets, open_request, opening

SERVER = Identity("trainer", ("localhost", "127.0.0.1"))
SERVICES = [
    pb.DESCRIPTOR.services_by_name["TrainerService"],
    control.DESCRIPTOR.services_by_name["TrainerControlService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
]
CONTROL = SERVICES[1].full_name
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
"""Every method that a trainer serves."""


GROUP = "ours"
"""A group that calls name, of which rank 0 is there."""


def message(method: str, session: str) -> bytes:
    """Build the first message of a right edge to `method`, about `session` where it is about one."""
    streamed = {
        "UploadBlock": lambda: serialize(block_packets(session, 1, b"state")[0]),
        "Link": lambda: opening(session),
    }
    if method.startswith(f"/{CONTROL}/"):
        request = GetMessageClass(METHODS[method].input_type)()
        if "session_id" in request.DESCRIPTOR.fields_by_name:
            request.session_id = session
        if "level" in request.DESCRIPTOR.fields_by_name:
            request.level = control.LOG_LEVEL_INFO
        if "group" in request.DESCRIPTOR.fields_by_name:
            request.group = GROUP
        return request.SerializeToString()
    plain: dict[str, Any] = {
        "OpenSession": open_request(),
        "DownloadBlock": pb.DownloadBlockRequest(session_id=session, block=1),
        "JoinSession": pb.JoinSessionRequest(session_id=session, session_term=1, protocol_version=PROTOCOL_VERSION),
        "RestoreWorker": pb.RestoreWorkerRequest(session_id=session),
        "CommitPlacement": pb.CommitPlacementRequest(session_id=session),
        "LeaveGroup": pb.LeaveGroupRequest(session_id=session),
        "JoinGroup": pb.JoinGroupRequest(session_id=session),
        "DialPeers": pb.DialPeersRequest(session_id=session),
        "OfferBlocks": pb.OfferBlocksRequest(session_id=session, worker="near", blocks=[1]),
        "FetchBlocks": pb.FetchBlocksRequest(session_id=session, blocks=[pb.WantedBlock(block=1)]),
        "CheckpointWorker": pb.CheckpointWorkerRequest(session_id=session),
        "JoinEvaluation": pb.JoinEvaluationRequest(session_id=session, evaluation=1),
        "MeasureStage": pb.MeasureStageRequest(session_id=session, first=1, stop=2, repeats=1),
        "CheckPeers": pb.CheckPeersRequest(addresses=["127.0.0.1:1"]),
        "MeasureLink": pb.MeasureLinkRequest(session_id=session),
        "Probe": pb.ProbeRequest(protocol_version=PROTOCOL_VERSION),
        "Relay": pb.RelayMessage(opening=pb.RelayOpening(address="127.0.0.1:1")),
        "TrainCopy": pb.TrainCopyRequest(protocol_version=PROTOCOL_VERSION, epochs=1),
        "GetSession": pb.GetSessionRequest(session_id=session),
        "CloseSession": pb.CloseSessionRequest(session_id=session),
        "Check": health_pb2.HealthCheckRequest(),
        "Watch": health_pb2.HealthCheckRequest(),
        "List": health_pb2.HealthListRequest(),
        "ServerReflectionInfo": reflection_pb2.ServerReflectionRequest(list_services=""),
    }
    name = method.rpartition("/")[2]
    return streamed[name]() if name in streamed else plain[name].SerializeToString()


def names_a_session(method: str) -> bool:
    """Tell whether a call of it is about one session."""
    return message(method, "one") != message(method, "another")


@dataclass(frozen=True)
class Peer:
    """The credentials of a peer: its certificate and its token."""

    credentials: grpc.ChannelCredentials | None
    token: str | None

    @asynccontextmanager
    async def channel(self, address: str) -> AsyncIterator[Any]:
        """A connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        if self.credentials is None:
            made = grpc.aio.insecure_channel(address, options=options)
        else:
            made = grpc.aio.secure_channel(address, self.credentials, options=options)
        async with made as channel:
            yield channel

    async def code(self, address: str, method: str, data: bytes) -> grpc.StatusCode:
        """Return the status of a call that says this much, and then ends; OK as soon as there is any answer."""
        async with self.channel(address) as channel:
            metadata = None if self.token is None else (("authorization", f"Bearer {self.token}"),)
            call = channel.stream_stream(method)(metadata=metadata, timeout=60)
            ending = CallStatus(call)
            try:
                await call.write(data)
                await call.done_writing()
                if await call.read() is not grpc.aio.EOF:
                    return grpc.StatusCode.OK
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                pass  # what a failed write says is that the call has ended; its status says why
            failure = await ending.failure()
            return grpc.StatusCode.OK if failure is None else failure.code()


class Doorkeeper:
    """The files of a trainer with mutual TLS and tokens, and the peers that come to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = make_authority("the trainer's own", 30)
        self.authority.write(folder / "ca.pem", folder / "ca.key")
        self.renew(self.authority)
        self.tokens: dict[str, str] = {}
        self.write_tokens({"ours": list(Scope), "theirs": list(AN_AGENTS)})

    @property
    def flags(self) -> list[str]:
        """The flags of the trainer's configuration."""
        return [*self.tls_flags, f"auth.tokens={self._folder / 'tokens.toml'}"]

    @property
    def tls_flags(self) -> list[str]:
        """The same without tokens."""
        files = {"certificate": "trainer.pem", "key": "trainer.key", "ca": "ca.pem"}
        return [f"tls.{key}={self._folder / name}" for key, name in files.items()]

    def rotate(self) -> None:
        """Change the authority itself, and with it the certificates of the trainer and of the agent `edge`."""
        self.authority = make_authority("the trainer's next", 30)
        self.renew(self.authority)
        self.credentials()
        self.authority.write(self._folder / "ca.pem", self._folder / "ca.key")

    def renew(self, authority: Signed) -> None:
        """Give the trainer another certificate."""
        issue(authority, SERVER, 1).write(self._folder / "trainer.pem", self._folder / "trainer.key")

    def write_tokens(self, scopes: dict[str, list[Scope]]) -> None:
        """These subjects have a new token each, and no other subject has one."""
        made = {subject: make_token(subject, allowed) for subject, allowed in scopes.items()}
        (self._folder / "tokens.toml").write_text("\n".join(table for _, table in made.values()))
        self.tokens = {subject: token for subject, (token, _) in made.items()}

    def credentials(
        self, authority: Signed | None = None, days: int = 1, name: str = "edge", trusts: Signed | None = None
    ) -> grpc.ChannelCredentials:
        """Credentials of a client whose certificate `authority` has signed; it trusts servers of `trusts`."""
        files = TlsFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key", self._folder / "trusted.pem")
        (trusts or self.authority).write(self._folder / "trusted.pem", self._folder / "trusted.key")
        issued = issue(authority or self.authority, Identity(name), days)
        issued.write(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        if days > 0:
            return channel_credentials(files)()
        # Our own side would refuse to start with it; a stranger's would not.
        certificate, key, ca = ((self._folder / file).read_bytes() for file in (f"{name}.pem", f"{name}.key", "ca.pem"))
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def friend(self, subject: str = "ours") -> Peer:
        """A caller with a right certificate and this subject's token."""
        return Peer(self.credentials(), self.tokens[subject])

    def strangers(self, method: str) -> dict[str, Peer]:
        """Return the peers that must not get through to `method`, by what is wrong with them."""
        token = self.tokens["ours"]
        without_certificate = grpc.ssl_channel_credentials((self._folder / "ca.pem").read_bytes())
        needed = SCOPES[method]
        return {
            "no certificate": Peer(without_certificate, token),
            "wrong CA": Peer(self.credentials(make_authority("somebody's", 1)), token),
            "expired certificate": Peer(self.credentials(days=0), token),
            "no token": Peer(self.credentials(), None),
            "wrong scope": Peer(self.credentials(), self.tokens[f"all but {needed}".replace(" ", "-")]),
        }


ALL = {"ours": list(Scope), "theirs": list(AN_AGENTS), "all-but-None": list(Scope)} | {
    f"all-but-{scope}": [other for other in Scope if other is not scope] for scope in Scope
}
"""A subject for every kind of token."""


def path_of(name: str) -> str:
    """The full name of one of the trainer's own methods."""
    return f"/{SERVICE}/{name}"
