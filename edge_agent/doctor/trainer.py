"""The trainer's fitness for this agent: its health, its version, and the rights of the agent's token."""

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from edge_agent.doctor.finding import Finding, fine, fix, skipped
from shared.client.methods import HEALTH, SERVICE, method_path
from shared.client.probing import ProbeAnswer, ProbeCalls
from shared.version import NO_SESSION, NO_VERSION, PROTOCOL_VERSION, spoken_version
from shared.wire.isthmus.v1 import trainer_pb2 as pb

Code = grpc.StatusCode


async def check_service(calls: ProbeCalls) -> Finding:
    """Check that the server at the address is a trainer that serves."""
    answer = await calls.ask(HEALTH, HealthCheckRequest(service=SERVICE))
    match answer.code:
        case Code.OK:
            return _judge_health(answer.data)
        case Code.NOT_FOUND | Code.UNIMPLEMENTED:
            return fix("service", "what listens there is no trainer", "correct the host and port of trainer.address")
        case _:
            return fix("service", answer.details, "is it a trainer, with the same [tls] as this agent? See its log")


def _judge_health(data: bytes) -> Finding:
    try:
        status = HealthCheckResponse.FromString(data).status
    except DecodeError:
        return fix("service", "what listens there is no trainer", "correct the host and port of trainer.address")
    if status != HealthCheckResponse.SERVING:
        return fix("service", "the trainer says that it is about to stop", "wait, or start it again")
    return fine("service", "the trainer serves")


async def check_access(calls: ProbeCalls) -> tuple[Finding, Finding]:
    """Check the scopes of the token, and that both sides speak one version of the protocol.

    One call for each scope, about a session that is not there, and an opening of one in a version that is none: a trainer
    that lets them in refuses them before they have changed anything, and says which version it speaks.
    """
    opening = await calls.ask(method_path("OpenSession"), pb.OpenSessionRequest(protocol_version=NO_VERSION))
    looking = await calls.ask(method_path("GetSession"), pb.GetSessionRequest(session_id=NO_SESSION))
    closing = await calls.ask(method_path("CloseSession"), pb.CloseSessionRequest(session_id=NO_SESSION))
    return judge_token({"train": opening, "control": closing, "read": looking}), judge_version(opening)


def judge_token(answers: dict[str, ProbeAnswer]) -> Finding:
    """answers: how a call ended that needs the scope."""
    refused = [answer for answer in answers.values() if answer.code is Code.UNAUTHENTICATED]
    if refused:
        return fix(
            "token", refused[0].details, "make one on the trainer (cloud-trainer token NAME) for trainer.token_file"
        )
    missing = [scope for scope, answer in answers.items() if answer.code is Code.PERMISSION_DENIED]
    if missing:
        remedy = "make a token with every scope on the trainer (cloud-trainer token NAME, without --scope)"
        return fix("token", f"it lacks the scope{'s' if len(missing) > 1 else ''} {', '.join(missing)}", remedy)
    busy = [answer for answer in answers.values() if answer.code is Code.RESOURCE_EXHAUSTED]
    if busy:
        return fix("token", busy[0].details, "wait, or raise the trainer's limits ([server])")
    return fine("token", f"this agent may {', '.join(answers)}")


def judge_version(opening: ProbeAnswer) -> Finding:
    """opening: how a session was refused that was asked for in version 0."""
    theirs = spoken_version(opening.details)
    if opening.code is not Code.FAILED_PRECONDITION or theirs is None:
        return skipped("protocol", f"the trainer does not say its version: {opening.details}")
    if theirs != PROTOCOL_VERSION:
        shown = f"the trainer speaks version {theirs}, this agent {PROTOCOL_VERSION}"
        waits = "; a run waits for that (upgrade.wait_seconds)" if abs(theirs - PROTOCOL_VERSION) == 1 else ""
        return fix("protocol", shown, f"install the same version of Isthmus on both sides{waits}")
    return fine("protocol", f"version {PROTOCOL_VERSION} on both sides")
