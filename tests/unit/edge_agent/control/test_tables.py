"""The status of a run as an operator sees it: whole in a table, and on one line."""

import io

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console

from edge_agent.control.tables import status_line, status_table
from shared.wire.isthmus.v1 import control_pb2 as pb

FULL = pb.EdgeStatus(
    state=pb.RUN_STATE_PAUSED,
    session_id="5e55" * 8,
    trainer="gpu:1",
    model="a.b:c",
    step=50,
    total_steps=200,
    running=Duration(seconds=90),
    deployment=pb.DeploymentStatus(
        edge_blocks=2,
        blocks=5,
        staleness_limit=3,
        codec="uniform8",
        bits=8,
        downlink_codec="fp32",
        downlink_bits=32,
        wanted_edge_blocks=4,
    ),
    pinned=pb.Pins(cut=4, staleness=3),
    planner="greedy",
    chosen_by="operator",
    staleness=1,
    phases=pb.PhaseSeconds(edge=0.004, uplink=0.008, cloud=0.002),
    uplink_bits_per_second=2.5e7,
    round_trip_seconds=0.0405,
    loss=0.5,
    accuracy=0.875,
    seconds_per_step=0.009,
    predicted_seconds_per_step=0.0085,
    measuring_seconds=0.25,
    engine_change=pb.EngineChange(
        time=Timestamp(seconds=1_800_000_000),
        step=30,
        before="cut 2, staleness 0, 32 bits",
        chosen="cut 3, staleness 3, 8 bits",
        reason="link",
        cause="the link [slow]",
        seconds_per_step=0.0085,
        staying_seconds_per_step=0.02,
    ),
    last_checkpoint=pb.CheckpointStatus(step=40, age=Duration(seconds=7300)),
    log_level=pb.LOG_LEVEL_INFO,
)


def test_a_status_is_shown_whole_and_on_one_line():
    console = Console(width=300, file=io.StringIO(), record=True)
    console.print(status_table(FULL))
    shown = console.export_text()
    for says in (
        "5e55" * 8,
        "paused, 90.0 s",
        "50 of 200 (25%), 9.0 ms each",
        "gpu:1, not attached",
        "2 of 5 here, 4 wanted, pinned to 4",
        "1, at most 3, pinned to 3",
        "up uniform8 (8 bits), down fp32 (32 bits)",
        "greedy, which predicted 8.5 ms a step, 0.25 s of measuring",
        " operator ",
        "at step 30, 2027-01-15 08:00:00, from cut 2, staleness 0, 32 bits to cut 3, staleness 3, 8 bits, because the link "
        "[slow]; 8.5 ms a step foreseen, 20.0 ms without",
        "8.00 ms " + "█" * 30,
        "4.00 ms " + "█" * 15 + " ",
        "up 25.0 Mbit/s, down not known yet, 40.5 ms there and back",
        "87.50%",
        "step 40, 2.0 h ago",
    ):
        assert says in shown, says
    assert status_line(FULL) == (
        "paused: step 50 of 200, 9.0 ms each, 2 of 5 blocks here, K 3, 8 bits, loss 0.5, accuracy 87.5%"
    )


def test_a_checkpoint_without_replicas_is_shown_with_the_reason():
    console = Console(width=120, file=io.StringIO(), record=True)
    last = pb.CheckpointStatus(step=40, lacks_replicas="no room on this device")
    console.print(status_table(pb.EdgeStatus(last_checkpoint=last)))
    assert "step 40; it lacks replicas: no room on this device" in console.export_text()


def test_unknown_values_are_shown_as_unknown():
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(status_table(pb.EdgeStatus(state=pb.RUN_STATE_OPENING)))
    shown = console.export_text()
    assert "none at every worker yet" in shown
    assert "planner" not in shown
    assert "changed" not in shown


def test_a_worker_that_is_left_out_is_marked():
    console = Console(width=120, file=io.StringIO(), record=True)
    near, far = pb.WorkerStatus(name="near", blocks=["1:3"], step=7), pb.WorkerStatus(name="far", left_out=True)
    console.print(status_table(pb.EdgeStatus(workers=[near, far])))
    shown = " ".join(console.export_text().replace("│", "").split())
    assert "on near blocks 1:3, 7 steps done on far left out: it was away for too long" in shown


def test_the_pinned_cuts_of_a_chain_are_shown():
    console = Console(width=120, file=io.StringIO(), record=True)
    today = pb.DeploymentStatus(edge_blocks=3, blocks=9)
    console.print(status_table(pb.EdgeStatus(deployment=today, pinned=pb.Pins(cuts=[3, 7]))))
    assert "3 of 9 here, cuts pinned to 3,7" in console.export_text()
