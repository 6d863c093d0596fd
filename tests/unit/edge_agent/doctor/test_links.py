"""The doctor's judgement of a trainer's links to those that it may have to dial."""

import grpc
import pytest

from edge_agent.doctor.examine import next_down_the_chain
from edge_agent.doctor.finding import Status
from edge_agent.doctor.link import judge_links
from shared.client.probing import ProbeAnswer
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.running import edge_config

TRAINERS = ", ".join(f'{{name="{name}", address="{name}.example.org:1"}}' for name in ("near", "far", "cloud"))
CONFIG = edge_config(
    f"trainers=[{TRAINERS}]",
    "tls.enabled=true",
    "placement.edge=0:1",
    "placement.near=1:2",
    "placement.far=2:3",
    "placement.cloud=3:",
)
NEAR, FAR, CLOUD = CONFIG.all_trainers


def judged(*checks):
    data = pb.CheckPeersResponse(checks=checks).SerializeToString()
    return judge_links(ProbeAnswer(grpc.StatusCode.OK, data=data), (FAR, CLOUD), FAR)


def test_a_link_that_the_placement_needs_has_to_be_and_any_other_is_advice():
    refused = pb.PeerCheck(reason="not allowed")
    needed, other = judged(refused, refused)
    assert (needed.check, needed.status) == ("link to far", Status.FIX)
    assert (other.check, other.status) == ("link to cloud", Status.ADVICE)
    assert "add cloud.example.org:1 to peers.allowed" in other.remedy


def test_only_obstacles_are_reported():
    good, bad = judged(pb.PeerCheck(allowed=True), pb.PeerCheck(allowed=True, reason="no\nanswer"))
    assert (good.status, good.remedy) == (Status.OK, "")
    assert bad.result == "it cannot dial cloud.example.org:1: no answer"


@pytest.mark.parametrize(
    "answer",
    [
        ProbeAnswer(grpc.StatusCode.UNIMPLEMENTED, "no such method"),
        ProbeAnswer(grpc.StatusCode.OK, data=b"\xff"),
        ProbeAnswer(grpc.StatusCode.OK, data=b""),
    ],
)
def test_a_trainer_that_does_not_say_is_no_fault(answer):
    assert [one.status for one in judge_links(answer, (FAR, CLOUD), FAR)] == [Status.SKIPPED] * 2


def test_the_worker_with_the_next_blocks_is_dialled():
    assert next_down_the_chain(CONFIG, NEAR, (FAR, CLOUD)) is FAR
    assert next_down_the_chain(CONFIG, FAR, (CLOUD,)) is CLOUD
    assert next_down_the_chain(CONFIG, CLOUD, ()) is None
