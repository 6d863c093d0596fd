"""Can trainers dial each other? Each is asked about those behind it: a placement, or a replacement, may want any such link."""

import grpc
from google.protobuf.message import DecodeError

from edge_agent.doctor.finding import Finding, advise, fine, fix, skipped
from shared.client.config import TrainerAddressConfig
from shared.client.methods import method_path
from shared.client.probing import Answer, ProbeCalls
from shared.errors import one_line
from shared.wire.isthmus.v1 import trainer_pb2 as pb


async def check_links(
    calls: ProbeCalls, others: tuple[TrainerAddressConfig, ...], needed: TrainerAddressConfig | None
) -> list[Finding]:
    """Whether a trainer can dial others. needed: the one that it dials by the placement, as far as that is known."""
    request = pb.CheckPeersRequest(addresses=[other.address for other in others])
    answer = await calls.ask(method_path("CheckPeers"), request)
    return judge_links(answer, others, needed)


def judge_links(
    answer: Answer, others: tuple[TrainerAddressConfig, ...], needed: TrainerAddressConfig | None
) -> list[Finding]:
    """answer: of CheckPeers about the others, in order. A link that is needed has to be; any other is advice."""
    try:
        checks = list(pb.CheckPeersResponse.FromString(answer.data).checks)
    except DecodeError:
        checks = []
    if answer.code is not grpc.StatusCode.OK or len(checks) != len(others):
        return [skipped(f"link to {other.name}", f"the trainer does not say: {answer.details}") for other in others]
    return [_judge(check, other, is_needed=other is needed) for check, other in zip(checks, others, strict=True)]


def _judge(check: pb.PeerCheck, other: TrainerAddressConfig, *, is_needed: bool) -> Finding:
    name = f"link to {other.name}"
    if check.allowed and not check.reason:
        return fine(name, f"it can dial {other.address}")
    if not check.allowed:
        found, remedy = f"it may not dial {other.address}", f"add {other.address} to peers.allowed of that trainer"
    else:
        found = f"it cannot dial {other.address}: {one_line(check.reason)}"
        remedy = "see that the two trainers reach and trust each other (a firewall, peers.tls)"
    if is_needed:
        return fix(name, found, remedy)
    return advise(name, found, f"{remedy}, should blocks move so, as when a trainer is replaced")
