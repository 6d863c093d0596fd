"""Worst claims of a peer, call by call: a table to which every call and every field with a size belongs."""

from collections.abc import Callable
from typing import Any

import xxhash

from shared.transport.stream.packets import Packet, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import Awaited, LinkMessage, LinkPosition
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader
from tests.support.peers.claim import LARGEST, MOST_MESSAGE_BYTES, Claim
from tests.support.peers.opening_claims import IN_PIECES, LONG, NESTED, OF_MANY, OPENINGS, recipe_but
from tests.support.wire import BATCH, BLOCKS, CUT, FEATURES, FENCE, begin_link, open_request, opening, placed


def _unary(message: Callable[[str], Any]) -> Callable[[str], list[bytes]]:
    return lambda session: [message(session).SerializeToString()]


def _upload(session: str, block: int, size: int) -> bytes:
    """The first byte of a block's state that is announced as so many bytes."""
    header = TensorHeader(codec="raw", dtype=DataType.DATA_TYPE_UINT8, shape=[size], strides=[1], encoded_bytes=size)
    frame = Frame(block=block, role=Role.ROLE_BLOCK, tensor=header)
    return serialize(Packet(pb.UploadBlockRequest(session_id=session, fence=FENCE, frame=frame), b"\x00"))


def _tensor(role: Role.ValueType, **header: Any) -> Callable[[str], list[bytes]]:
    """A batch whose `role` is announced so; its labels are right where the feature is not."""

    def messages(session: str) -> list[bytes]:
        labels = TensorHeader(
            codec="raw", dtype=DataType.DATA_TYPE_INT64, shape=[BATCH], strides=[1], encoded_bytes=8 * BATCH
        )
        wrong = TensorHeader(**{"codec": "raw", "dtype": DataType.DATA_TYPE_INT64} | header)
        sent = begin_link(session)
        if role == Role.ROLE_FEATURE:
            frame = Frame(role=Role.ROLE_LABEL, block=BLOCKS, tensor=labels, batch_samples=BATCH)
            sent.append(serialize(Packet(LinkMessage(frames=[frame]), bytes(8 * BATCH))))
        block = CUT if role == Role.ROLE_FEATURE else BLOCKS
        frame = Frame(role=role, block=block, tensor=wrong, batch_samples=BATCH)
        sent.append(serialize(Packet(LinkMessage(frames=[frame]), b"\x00" * 64)))
        return sent

    return messages


def _copy_request(**changes: Any) -> pb.TrainCopyRequest:
    """Build the request of a right edge to have a copy trained, but for `changes`."""
    right = open_request()
    fields: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "model": right.model,
        "inputs": right.inputs,
        "recipe_json": right.recipe_json,
        "cut": CUT,
        "codec": "fp32",
        "backward": "replay",
        "feedback": "off",
        "epochs": 1.0,
    }
    return pb.TrainCopyRequest(**{**fields, **changes})


_TENSORS: dict[str, dict[str, Any]] = {
    "a billion columns": {"shape": [BATCH, 2**30], "strides": [2**30, 1], "encoded_bytes": 8 * BATCH * 2**30},
    "a gigabyte out of one byte": {"shape": [BATCH, 2**27], "strides": [0, 0], "encoded_bytes": 8},
    "samples beyond counting": {"shape": [LARGEST], "strides": [0], "encoded_bytes": 8},
    "many dimensions": {"shape": [BATCH, *[1] * 10_000], "strides": [1] * 10_001, "encoded_bytes": 8 * BATCH},
    "wide strides": {"shape": [BATCH, FEATURES], "strides": [2**40, 2**20], "encoded_bytes": 8 * BATCH * FEATURES},
}

_JOINED = pb.Fence(session_term=1)
_PLACEMENTS = {
    "a placement as long as a message": LONG,
    "a placement in many brackets": NESTED,
    "a placement of many workers": OF_MANY,
    "a placement of many tiles": IN_PIECES,
    "the last cut": placed(cut=LARGEST, version=1),
    "the largest K": placed(staleness=LARGEST, version=1),
    "a codec's name as long as may be": placed(codec="q" * 60_000, version=1),
}
_PLACING: dict[str, Callable[[str, pb.Placement], Any]] = {
    "CommitPlacement": lambda session, placement: pb.CommitPlacementRequest(
        session_id=session, fence=_JOINED, placement=placement
    ),
    "RestoreWorker": lambda session, placement: pb.RestoreWorkerRequest(
        session_id=session, fence=_JOINED, placement=placement
    ),
}
_STEPS: dict[str, Callable[[str, int], Any]] = {
    "CheckpointWorker": lambda session, step: pb.CheckpointWorkerRequest(
        session_id=session, fence=_JOINED, name=pb.CheckpointName(step=step)
    ),
    "CommitPlacement": lambda session, step: pb.CommitPlacementRequest(
        session_id=session, fence=_JOINED, next_step=step, placement=placed(version=1), prepare=True
    ),
    "RestoreWorker": lambda session, step: pb.RestoreWorkerRequest(
        session_id=session,
        fence=_JOINED,
        checkpoint=pb.CheckpointName(step=step),
        placement=placed(version=1, cut=BLOCKS),
    ),
}
_EMPTY_FIELDS = bytes([15 << 3 | 2, 0]) * (MOST_MESSAGE_BYTES // 2)


def _checked(body: bytes) -> bytes:
    """A streamed message of these bytes, with a right checksum."""
    return body + bytes([15 << 3 | 1]) + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


CLAIMS = [
    *(
        Claim(method, "a message of millions of empty fields", lambda _session: [_checked(_EMPTY_FIELDS)])
        for method in ("Link", "UploadBlock")
    ),
    *OPENINGS,
    *(
        Claim("Link", f"{name} with {what}", _tensor(role, **header))
        for role, name in ((Role.ROLE_LABEL, "labels"), (Role.ROLE_FEATURE, "a feature"))
        for what, header in _TENSORS.items()
    ),
    Claim(
        "Link",
        "a worker's name as long as a message",
        lambda session: [opening(session, worker="w" * MOST_MESSAGE_BYTES)],
    ),
    Claim(
        "Link",
        "a hundred thousand tensors that are awaited",
        lambda session: [
            opening(session),
            serialize(Packet(LinkMessage(position=LinkPosition(awaited=[Awaited(block=1)] * 100_000)))),
        ],
    ),
    Claim("UploadBlock", "a block of terabytes", lambda session: [_upload(session, block=1, size=2**42)]),
    Claim("UploadBlock", "the last block", lambda session: [_upload(session, block=LARGEST, size=64)]),
    Claim(
        "TrainCopy",
        "a training without end",
        _unary(lambda _session: _copy_request(epochs=1e300, staleness=LARGEST, cut=LARGEST)),
    ),
    Claim(
        "TrainCopy",
        "a recipe as long as a message",
        _unary(lambda _session: _copy_request(recipe_json=recipe_but(loss="x" * MOST_MESSAGE_BYTES))),
    ),
    Claim(
        "DownloadBlock",
        "the last block",
        _unary(lambda session: pb.DownloadBlockRequest(session_id=session, block=LARGEST)),
    ),
    *(
        Claim(method, what, _unary(lambda session, kind=kind, placement=placement: kind(session, placement)))
        for method, kind in _PLACING.items()
        for what, placement in _PLACEMENTS.items()
    ),
    Claim(
        "JoinGroup",
        "the last step that there can be, of the last life",
        _unary(
            lambda session: pb.JoinGroupRequest(session_id=session, fence=_JOINED, life=2**64 - 1, first_step=2**64 - 1)
        ),
    ),
    Claim(
        "LeaveGroup",
        "the last step that there can be",
        _unary(lambda session: pb.LeaveGroupRequest(session_id=session, fence=_JOINED, last_step=2**64 - 1)),
    ),
    Claim(
        "LeaveGroup",
        "the end of all after the last step that there can be",
        _unary(
            lambda session: pb.LeaveGroupRequest(
                session_id=session, fence=_JOINED, last_step=2**64 - 1, ends_group=True
            )
        ),
    ),
    Claim(
        "DialPeers",
        "a hundred thousand peers",
        _unary(lambda session: pb.DialPeersRequest(session_id=session, fence=_JOINED, peers=[pb.Peer()] * 100_000)),
    ),
    Claim(
        "DialPeers",
        "an address as long as a message",
        _unary(
            lambda session: pb.DialPeersRequest(
                session_id=session, fence=_JOINED, peers=[pb.Peer(worker="edge", address="a" * MOST_MESSAGE_BYTES)]
            )
        ),
    ),
    Claim(
        "OfferBlocks",
        "a hundred thousand blocks",
        _unary(
            lambda session: pb.OfferBlocksRequest(
                session_id=session, fence=_JOINED, worker="near", blocks=[LARGEST] * 100_000
            )
        ),
    ),
    Claim(
        "OfferBlocks",
        "a worker's name as long as a message",
        _unary(
            lambda session: pb.OfferBlocksRequest(
                session_id=session, fence=_JOINED, worker="w" * MOST_MESSAGE_BYTES, blocks=[1]
            )
        ),
    ),
    Claim(
        "FetchBlocks",
        "a hundred thousand blocks",
        _unary(
            lambda session: pb.FetchBlocksRequest(
                session_id=session, fence=_JOINED, blocks=[pb.WantedBlock(block=LARGEST)] * 100_000
            )
        ),
    ),
    Claim(
        "FetchBlocks",
        "an address as long as a message",
        _unary(
            lambda session: pb.FetchBlocksRequest(
                session_id=session,
                fence=_JOINED,
                peer=pb.Peer(worker="near", address="a" * MOST_MESSAGE_BYTES),
                blocks=[pb.WantedBlock(block=1)],
            )
        ),
    ),
    Claim(
        "CheckPeers",
        "an address as long as a message",
        _unary(lambda _session: pb.CheckPeersRequest(addresses=["a" * MOST_MESSAGE_BYTES])),
    ),
    Claim(
        "CheckPeers",
        "as many addresses as a message holds",
        _unary(lambda _session: pb.CheckPeersRequest(addresses=["127.0.0.1:1"] * 100_000)),
    ),
    Claim(
        "Probe",
        "a factory as long as a message",
        _unary(lambda _session: pb.ProbeRequest(protocol_version=PROTOCOL_VERSION, factory="a" * MOST_MESSAGE_BYTES)),
    ),
    Claim(
        "Relay",
        "an address as long as a message",
        _unary(
            lambda _session: pb.RelayMessage(
                opening=pb.RelayOpening(protocol_version=PROTOCOL_VERSION, address="a" * MOST_MESSAGE_BYTES)
            )
        ),
    ),
    Claim(
        "Relay", "bytes before its opening", _unary(lambda _session: pb.RelayMessage(data=b"\0" * MOST_MESSAGE_BYTES))
    ),
    Claim(
        "MeasureLink",
        "an address as long as a message",
        _unary(
            lambda session: pb.MeasureLinkRequest(
                session_id=session, fence=_JOINED, peer=pb.Peer(worker="near", address="a" * MOST_MESSAGE_BYTES)
            )
        ),
    ),
    Claim(
        "CheckpointWorker",
        "the last step",
        _unary(
            lambda session: pb.CheckpointWorkerRequest(
                session_id=session, fence=_JOINED, name=pb.CheckpointName(lineage=2**64 - 1, step=2**64 - 1)
            )
        ),
    ),
    *(
        Claim(
            method,
            f"step {step}, to one who has no blocks",
            _unary(lambda session, kind=kind, step=step: kind(session, step)),
            without_blocks=True,
        )
        for step in (2**53, 2**64 - 1)
        for method, kind in _STEPS.items()
    ),
    Claim(
        "JoinSession",
        "another version",
        _unary(lambda session: pb.JoinSessionRequest(session_id=session, session_term=2**64 - 1)),
    ),
    Claim(
        "MeasureStage",
        "repeats without end",
        _unary(lambda session: pb.MeasureStageRequest(session_id=session, first=1, stop=2, repeats=LARGEST)),
    ),
    *(
        Claim(
            name,
            "an id as long as a message",
            _unary(lambda _session, kind=kind: kind(session_id="f" * MOST_MESSAGE_BYTES)),
        )
        for name, kind in {
            "GetSession": pb.GetSessionRequest,
            "CloseSession": pb.CloseSessionRequest,
            "MeasureStage": pb.MeasureStageRequest,
            "DownloadBlock": pb.DownloadBlockRequest,
            "RestoreWorker": pb.RestoreWorkerRequest,
            "CommitPlacement": pb.CommitPlacementRequest,
            "LeaveGroup": pb.LeaveGroupRequest,
            "JoinGroup": pb.JoinGroupRequest,
            "DialPeers": pb.DialPeersRequest,
            "CheckpointWorker": pb.CheckpointWorkerRequest,
            "JoinEvaluation": pb.JoinEvaluationRequest,
        }.items()
    ),
]
"""Every one is refused. With a new call, or a new field that has a size, add its worst claim here."""
