"""Damaged messages, drawn from a seed: bytes that were damaged on the way, and right messages that say hostile things.

Each is a `Case`: what a peer sends in one call. A case is refused unless it says that it may be harmless: where nothing
vouches for the bytes (a call without a checksum, a checksum put under random bytes) they may turn out to mean something.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
import xxhash

from shared.model.build import build_checked_chain
from shared.training import block_state, state_file
from shared.transport.stream.packets import Packet, serialize
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.link_pb2 import LinkMessage, LinkOpening, LinkPosition, StepDone, WorkerStopping
from shared.wire.isthmus.v1.tensor_pb2 import Ack, DataType, TensorHeader
from tests.support.peers.damaged_frames import BIG, any_sizes, any_text, but, hostile_frames, packet_bytes
from tests.support.wire import (
    BATCH,
    FEATURES,
    batch_packets,
    block_packets,
    open_request,
    opening,
    placed,
    positioned,
)

BLOCK = 1


@dataclass(frozen=True, slots=True)
class Case:
    """Messages to send, and the facts that are known of them."""

    what: str
    method: str
    messages: list[bytes]
    harmless: bool = False
    codec: str | None = None
    """The codec of a session that the case needs for itself, joined before; None where it needs none."""
    positioned: bool = True
    """True if the link of that session has said where it stands, besides which one it is."""
    ends: bool = True
    """True if the peer ends the stream after these messages, instead of waiting for the answers."""


class Damage:
    """An endless supply of cases. session, fresh: named by cases that need none of their own; both outlive them all.

    The first is joined with term 1, the second by no agent, so that blocks can be uploaded to it.
    """

    def __init__(self, seed: int, session: str, fresh: str) -> None:
        self._random = Random(seed)
        self._session = session
        self._fresh = fresh
        example = torch.zeros(BATCH, FEATURES)
        block = build_checked_chain("shared.model.zoo:mlp", {}, 0, example).blocks[BLOCK]
        self._block = block_state.collect(block, None)

    def cases(self) -> Iterator[Case]:
        """Cases of every kind in turn."""
        streams = [self._before_link, self._upload]
        kinds = [*streams, self._opening, *streams, self._position, self._training, self._control, self._content]
        while True:
            for kind in kinds:
                yield kind()

    def _before_link(self) -> Case:
        """A link that is not opened."""
        draw, session = self._random, self._session
        good = opening(session)
        told = LinkOpening(session_id=session, session_term=1, worker="edge", protocol_version=PROTOCOL_VERSION)
        hostile = {
            "unknown session": opening(draw.choice(["", "x", "x" * 100_000, "\U0001f980", session[:-1]])),
            "another term": opening(session, draw.choice([0, 2, *BIG])),
            "another worker": opening(session, worker=draw.choice(["", "trainer", "x" * 100_000, any_text(draw)])),
            "another evaluation": opening(session, evaluation=draw.choice([1, 7, *BIG])),
            "no opening": serialize(batch_packets(0)[0]),
            "a position first": positioned(),
            "opening with an ack": packet_bytes(LinkMessage(opening=told, ack=Ack())),
            "opening with a payload": packet_bytes(LinkMessage(opening=told), b"x"),
            "opening with a position": packet_bytes(LinkMessage(opening=told, position=LinkPosition())),
            "empty": packet_bytes(LinkMessage()),
        }
        return self._damaged_or("Link", good, hostile)

    def _position(self) -> Case:
        """An open link whose end says wrongly where it stands."""
        draw = self._random
        hostile = {
            "another placement": positioned(version=draw.choice([1, *BIG])),
            "another step": positioned(next_step=draw.choice([1, 7, *BIG])),
            "steps that are done": positioned(dones=draw.choice([1, 7, *BIG])),
            "another block": positioned(cut=draw.choice([0, 2, 3, 2**32 - 1])),
            "nothing awaited": packet_bytes(LinkMessage(position=LinkPosition())),
            "no position": serialize(batch_packets(0)[0]),
            "opened once more": opening(self._session),
        }
        case = self._damaged_or("Link", positioned(), hostile)
        return replace(case, codec="fp32", positioned=False)

    def _training(self) -> Case:
        """An open link that goes wrong in its first batch."""
        draw = self._random
        codec = draw.choice(["fp32", "fp32", "uniform4-channel"])
        packets = batch_packets(0, codec=codec)
        place = draw.randrange(len(packets))
        before = [serialize(packet) for packet in packets[:place]]
        hostile = hostile_frames(draw, packets[place]) | {
            "payload without a frame": packet_bytes(LinkMessage(), b"xyz"),
            "ack of bytes never sent": packet_bytes(LinkMessage(ack=Ack(received_bytes=draw.choice([1, *BIG])))),
            "opened once more": opening(self._session),
            "position once more": positioned(),
            "what another has done": packet_bytes(LinkMessage(dones=[StepDone(worker=any_text(draw))])),
            "that another stops": packet_bytes(LinkMessage(stopping=WorkerStopping(worker=any_text(draw)))),
        }
        case = self._damaged_or("Link", serialize(packets[place]), hostile)
        return replace(case, messages=before + case.messages, codec=codec)

    def _content(self) -> Case:
        """Right frames around content that cannot be."""
        draw = self._random
        codec = draw.choice(["fp32", "uniform4-channel"])
        damages_feature = codec != "fp32" and draw.random() < 0.5
        labels = [draw.choice([-1, 10, 2**62, -(2**63)]), *[0] * (BATCH - 1)]
        packets = batch_packets(0, codec=codec, labels=() if damages_feature else labels)
        if damages_feature:
            for packet in packets[:-1]:
                packet.payload = draw.randbytes(len(packet.payload))
        elif draw.random() < 0.3:
            header = packets[-1].message.frames[0].tensor
            header.dtype, header.encoded_bytes = DataType.DATA_TYPE_BOOL, BATCH
            packets[-1].payload = bytes([7] * BATCH)
        what = "random bytes for a codec" if damages_feature else "labels that cannot be"
        return Case(what, "Link", list(map(serialize, packets)), codec=codec, ends=False)

    def _upload(self) -> Case:
        """An upload of a block that goes wrong."""
        if self._random.random() < 0.4:
            what, data, harmless = self._file()
            return Case(what, "UploadBlock", list(map(serialize, block_packets(self._fresh, BLOCK, data))), harmless)
        return self._stream("UploadBlock", block_packets(self._fresh, BLOCK, state_file.serialize(self._block)))

    def _stream(self, method: str, packets: list[Packet[Any]]) -> Case:
        """A stream of `packets` that ends early, or goes wrong at one of them."""
        draw = self._random
        place = draw.randrange(len(packets))
        before = [serialize(packet) for packet in packets[:place]]
        if draw.random() < 0.1:
            return Case("ends early", method, before)
        other = packet_bytes(
            but(packets[place].message, session_id=draw.choice(["", "y" * 9000])), packets[place].payload
        )
        hostile = hostile_frames(draw, packets[place]) | {"another session": other}
        case = self._damaged_or(method, serialize(packets[place]), hostile)
        return replace(case, messages=before + case.messages)

    def _opening(self) -> Case:
        """A session that cannot be opened, or a request that was damaged on the way and has no checksum to tell."""
        draw = self._random
        if draw.random() < 0.5:
            what, data = self._damaged(open_request().SerializeToString())
            return Case(what, "OpenSession", [data], harmless=True)
        hostile: list[tuple[str, dict[str, Any]]] = [
            ("version", {"protocol_version": draw.choice([0, PROTOCOL_VERSION + 1, 2**32 - 1])}),
            ("cut", {"cut": draw.choice([0, 4, 2**32 - 1])}),
            ("staleness", {"staleness": draw.choice([65, 2**32 - 1])}),
            ("codec", {draw.choice(["codec", "downlink_codec"]): any_text(draw)}),
            ("loss", {"loss": any_text(draw)}),
            (
                "block names",
                {"block_names": draw.choice([[], ["0"] * 3, ["0", "1", "2", "3"], ["x"] * 20_000, [any_text(draw)]])},
            ),
            ("recipe", {"recipe_json": draw.choice([any_text(draw), "[" * 100_000, '{"seed": 1e999}'])}),
            ("factory", {"model": pb.Model(factory=any_text(draw))}),
            ("kwargs", {"model": pb.Model(factory="shared.model.zoo:mlp", kwargs_json=self._kwargs())}),
            ("example", {"inputs": [but(TensorHeader(), dtype=draw.randrange(9), shape=[BATCH, *any_sizes(draw)])]}),
            (
                "example type",
                {"inputs": [but(TensorHeader(shape=[BATCH, FEATURES]), dtype=draw.choice([0, 5, 8, 99]))]},
            ),
        ]
        name, changes = draw.choice(hostile)
        return Case(f"hostile {name}", "OpenSession", [open_request(**changes).SerializeToString()])

    def _control(self) -> Case:
        """A call about a session that says what cannot be, or nothing at all."""
        draw, session = self._random, self._session
        unknown = draw.choice(["", "x", "x" * 100_000, session[1:]])
        wrong: dict[str, Any] = draw.choice(
            [{"cut": draw.choice([0, 4, 2**32 - 1])}, {"staleness": 65}, {"codec": any_text(draw)}, {"version": 0}]
        )
        placement, fence = placed(**{"cut": 2, "version": 1, **wrong}), pb.Fence(session_term=1)
        another = pb.Fence(session_term=draw.choice([0, 2, *BIG]))
        name, message = draw.choice(
            [
                ("GetSession", pb.GetSessionRequest(session_id=unknown)),
                ("DownloadBlock", pb.DownloadBlockRequest(session_id=unknown, block=1)),
                ("DownloadBlock", pb.DownloadBlockRequest(session_id=session, block=draw.choice([0, 3, 2**32 - 1]))),
                ("JoinSession", pb.JoinSessionRequest(session_id=session, session_term=draw.choice([0, 1]))),
                ("CommitPlacement", pb.CommitPlacementRequest(session_id=unknown)),
                (
                    "CommitPlacement",
                    pb.CommitPlacementRequest(session_id=session, fence=fence, placement=placement),
                ),
                (
                    "CommitPlacement",
                    pb.CommitPlacementRequest(
                        session_id=session,
                        fence=fence,
                        placement=placed(cut=2, version=1),
                        next_step=draw.choice([1, *BIG]),
                    ),
                ),
                (
                    "RestoreWorker",
                    pb.RestoreWorkerRequest(
                        session_id=session,
                        fence=draw.choice([fence, another]),
                        checkpoint=pb.CheckpointName(lineage=1, step=1),
                        placement=placement,
                    ),
                ),
                ("LeaveGroup", pb.LeaveGroupRequest(session_id=session, fence=fence, last_step=7)),
                ("LeaveGroup", pb.LeaveGroupRequest(session_id=session, fence=fence, last_step=7, ends_group=True)),
                ("JoinGroup", pb.JoinGroupRequest(session_id=session, fence=fence, life=1, first_step=7)),
                ("DialPeers", pb.DialPeersRequest(session_id=session, fence=fence)),
                (
                    "DialPeers",
                    pb.DialPeersRequest(session_id=session, fence=fence, peers=[pb.Peer(worker=any_text(draw))]),
                ),
                ("CheckpointWorker", pb.CheckpointWorkerRequest(session_id=session, fence=another)),
                (
                    "CheckpointWorker",
                    pb.CheckpointWorkerRequest(session_id=session, fence=fence, name=pb.CheckpointName(step=7)),
                ),
                ("JoinEvaluation", pb.JoinEvaluationRequest(session_id=session, fence=fence)),
                ("JoinEvaluation", pb.JoinEvaluationRequest(session_id=session, fence=another, evaluation=1)),
            ]
        )
        if draw.random() < 0.2:
            return Case("random bytes", name, [draw.randbytes(draw.randrange(1, 60))], harmless=True)
        return Case("hostile fields", name, [message.SerializeToString()])

    def _damaged_or(self, method: str, good: bytes, hostile: dict[str, bytes]) -> Case:
        """Half of the time what the way does to bytes, else one of the messages that are hostile but whole."""
        draw = self._random
        if draw.random() < 0.1:
            body = draw.randbytes(draw.randrange(1, 60))
            return Case("random bytes under a right checksum", method, [_sealed(body)], harmless=True)
        if draw.random() < 0.5:
            what, data = self._damaged(good)
            return Case(what, method, [data])
        what = draw.choice(sorted(hostile))
        return Case(what, method, [hostile[what]])

    def _damaged(self, good: bytes) -> tuple[str, bytes]:
        draw = self._random
        match draw.randrange(4):
            case 0:
                damaged = bytearray(good)
                for bit in draw.sample(range(8 * len(good)), draw.choice([1, 1, 2, 8])):
                    damaged[bit // 8] ^= 1 << bit % 8
                return "flipped bits", bytes(damaged)
            case 1:
                return "cut off", good[: draw.randrange(len(good))]
            case 2:
                return "more at the end", good + draw.randbytes(draw.randrange(1, 20))
            case _:
                return "random bytes", draw.randbytes(draw.randrange(300))

    def _kwargs(self) -> str:
        draw = self._random
        return draw.choice(
            ["[]", "{", "[" * 100_000, '{"depth": 1}', '{"hidden": -1}', '{"\\ud800": 1}', '{"depth": 1e999}']
        )

    def _file(self) -> tuple[str, bytes, bool]:
        """Draw a file that may come as a block's state: name, bytes, and whether they may be right."""
        draw = self._random
        good = state_file.serialize(self._block)
        header_bytes = 8 + struct.unpack("<Q", good[:8])[0]
        names = sorted(self._block)
        weight = next(name for name in names if name.endswith("weight"))
        match draw.randrange(7):
            case 0:
                damaged = bytearray(good)
                damaged[draw.randrange(header_bytes)] ^= 1 << draw.randrange(8)
                return "a flipped bit in the header of the file", bytes(damaged), True
            case 1:
                return "a file cut off", good[: draw.randrange(1, len(good))], False
            case 2:
                return "a header of absurd length", struct.pack("<Q", draw.choice(BIG)) + good[8:], False
            case 3:
                less = {name: tensor for name, tensor in self._block.items() if name != weight}
                return "a tensor is missing", state_file.serialize(less), False
            case 4:
                more = self._block | {draw.choice(["x", "parameter/", "optimizer/x/y"]): torch.zeros(1)}
                return "a tensor too many", state_file.serialize(more), False
            case 5:
                wrong = draw.choice([torch.zeros(3), torch.zeros(FEATURES, FEATURES).double(), torch.tensor(1.0)])
                return "a tensor of another kind", state_file.serialize(self._block | {weight: wrong}), False
            case _:
                sizes = draw.choice([[0, 2**63], [0, 2**62, 8], [2**62, 4], [0, -1], [2**64, 0]])
                entry = {"dtype": "F32", "shape": sizes, "data_offsets": [0, 0]}
                header = json.dumps({weight: entry}).encode()
                return "sizes that cannot be", struct.pack("<Q", len(header)) + header, False


def _sealed(body: bytes) -> bytes:
    return body + b"\x79" + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
