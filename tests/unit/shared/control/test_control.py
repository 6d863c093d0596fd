"""The parts of the control services: where they listen, pins and planners, standing still, what is said."""

import asyncio
import io
import stat

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry
from rich.console import Console
from typer.testing import CliRunner

from cloud_trainer.control.service import TrainerControl
from cloud_trainer.main import app as trainer_app
from cloud_trainer.metrics import TrainerMetrics
from cloud_trainer.sessions.registry import SessionRegistry
from cloud_trainer.sessions.session_store import Quota, SessionStore
from edge_agent.adaptation.decisions import Planner
from edge_agent.config import DeploymentConfig, EdgeConfig
from edge_agent.control.pins import Pinning, Pins
from edge_agent.control.status import session_statuses
from edge_agent.control.tables import status_line, status_table
from edge_agent.observability.activity import Activity
from edge_agent.training.pause import Pause
from edge_agent.training.session_store import SessionRecord
from shared.checkpoint import CheckpointName
from shared.config import load_config
from shared.control.address import control_target, held
from shared.control.levels import level_now, set_level
from shared.control.watching import watch
from shared.errors import ConfigError, ListenError, PlanError, RefusedError, StoppedError, UnreachableError
from shared.telemetry.logs import configure_logs
from shared.transport.auth.callers import ANYONE, Authenticator, Caller, set_caller
from shared.transport.auth.tokens import AN_AGENTS, Scope, read_tokens
from shared.transport.rpc.status import Refusal, status_of
from shared.wire.isthmus.v1 import control_pb2 as pb
from tests.unit.edge_agent.adaptation.test_decisions import Deployer, Run


@pytest.mark.parametrize(
    "listen", ["auto", "none", "unix:/run/x.sock", "127.0.0.1:0", "127.9.9.9:50060", "[::1]:1", "localhost:50060"]
)
def test_a_process_is_controlled_from_its_own_machine(listen):
    assert load_config(EdgeConfig, None, [f"control.listen={listen}"], {}).control.listen == listen


@pytest.mark.parametrize(
    "listen",
    ["", "0.0.0.0:1", "192.168.1.5:1", "gpu.example.org:1", "unix:", "unix:relative", "unix:/", "127.0.0.1", "x"],
)
def test_and_from_nowhere_else(listen):
    with pytest.raises(
        ConfigError,
        match=r"control\.listen is .*; it must be auto, none, unix:/path/of/a/socket or host:port on loopback",
    ):
        load_config(EdgeConfig, None, [f'control.listen="{listen}"'], {})


def test_by_itself_a_service_has_its_socket_in_its_runtime_directory_and_a_user_in_his_state_directory():
    service = {"RUNTIME_DIRECTORY": "/run/edge-agent", "STATE_DIRECTORY": "/var/lib/edge-agent"}
    assert control_target("auto", "edge-agent", service) == "unix:/run/edge-agent/control.sock"
    user = {"XDG_STATE_HOME": "/home/u/.local/state"}
    assert control_target("auto", "edge-agent", user) == "unix:/home/u/.local/state/isthmus/edge-agent/control.sock"
    assert control_target("127.0.0.1:7", "edge-agent", service) == "127.0.0.1:7"


def test_a_socket_is_one_processs_at_a_time_and_is_gone_with_it(tmp_path):
    target = f"unix:{tmp_path}/deep/control.sock"
    with held(target) as path:
        path.touch()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(ListenError, match="another process is controlled at"), held(target):
            pass
    assert not path.exists()
    with held(target):
        pass


def test_every_activity_and_planner_has_its_name_in_the_contract():
    def names(enum, prefix):
        return {name.removeprefix(prefix) for name in enum.DESCRIPTOR.values_by_name} - {"UNSPECIFIED"}

    assert {activity.name for activity in Activity} == names(pb.RunState, "RUN_STATE_")
    assert {planner.name for planner in Planner} == names(pb.Planner, "PLANNER_")


def test_a_log_level_is_set_and_the_one_before_is_told():
    configure_logs("info")
    assert level_now() == pb.LOG_LEVEL_INFO
    assert set_level(pb.LOG_LEVEL_ERROR) == pb.LOG_LEVEL_INFO
    assert set_level(pb.LOG_LEVEL_INFO) == pb.LOG_LEVEL_ERROR
    for none in (pb.LOG_LEVEL_UNSPECIFIED, 99):
        with pytest.raises(Refusal, match="the level must be one of LOG_LEVEL_DEBUG"):
            set_level(none)
    assert level_now() == pb.LOG_LEVEL_INFO


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PlanError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (UnreachableError("x"), grpc.StatusCode.UNAVAILABLE),
        (RefusedError("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (StoppedError("x"), grpc.StatusCode.ABORTED),
    ],
)
def test_an_error_of_the_agents_has_its_status(error, code):
    assert status_of(error) is code


@pytest.mark.parametrize(("seconds", "fits"), [(0.04, False), (0.05, True), (3600, True), (3601, False), (-1, False)])
async def test_a_status_can_be_watched_so_often_and_no_oftener(seconds, fits):
    interval, ended = Duration(), asyncio.Event()
    interval.FromNanoseconds(int(seconds * 1e9))
    seen = watch(interval, lambda: 1, ended)
    if not fits:
        with pytest.raises(Refusal, match=r"it must be from 0\.05 to 3600 s"):
            await anext(seen)
        return
    assert await anext(seen) == 1
    ended.set()
    assert [status async for status in seen] == [1], "a last one says how it ended"


class Chain:
    blocks = (None,) * 4
    first_cut = 1


def pinning(deployer, decisions=None, **configured):
    made = Pinning(DeploymentConfig(**configured))
    made.begin(Chain, deployer, decisions)
    return made


def test_without_an_engine_a_pin_changes_what_is_pinned_and_nothing_else():
    deployer = Deployer(cut=1, staleness=3, codec="fp32")
    pins = pinning(deployer)
    pins.pin(Pins(bits=8))
    assert (deployer.deployment.codec, deployer.deployment.staleness, deployer.wanted) == ("uniform8", 3, None)
    pins.pin(Pins(cut=2, staleness=1))
    assert (deployer.deployment.codec, deployer.deployment.staleness, deployer.wanted) == ("uniform8", 1, 2)
    assert pins.now == Pins(2, 8, 1), "what was pinned before stays pinned"
    deployer.settle()
    pins.release(["bits"])
    assert pins.now == Pins(2, None, 1)
    assert (deployer.deployment.codec, deployer.moving) == ("uniform8", False)


def test_what_is_pinned_is_asked_for_again_where_training_went_back():
    deployer = Deployer(cut=1, staleness=3, codec="fp32")
    pins = pinning(deployer)
    pins.pin(Pins(cut=2, bits=8))
    deployer.settle()
    deployer.deployment.cut, deployer.deployment.codec = 1, "fp32"
    pins.enforce()
    assert (deployer.deployment.codec, deployer.wanted) == ("uniform8", 2)


def test_a_pin_of_todays_cut_ends_a_move_to_another():
    deployer = Deployer(cut=1)
    deployer.move(3)
    pinning(deployer).pin(Pins(cut=1))
    assert deployer.wanted == 1


def test_a_k_that_follows_a_schedule_cannot_be_pinned():
    pins = pinning(Deployer(), staleness=((0, 1), (4, 2)))
    with pytest.raises(Refusal, match=r"K follows the schedule in deployment\.staleness") as refused:
        pins.check(Pins(staleness=1))
    assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
    pins.check(Pins(cut=1))


def test_with_an_engine_what_it_has_not_measured_is_refused_and_changes_nothing():
    run = Run()
    pins = pinning(run.deployer, run.loop)
    pins.pin(Pins(cut=2))
    with pytest.raises(PlanError):
        pins.pin(Pins(cut=9))
    assert pins.now == Pins(cut=2)
    assert run.deployer.wanted == 2


def test_a_pin_before_the_link_was_measured_holds_too():
    run = Run()
    pinning(run.deployer, run.loop).pin(Pins(cut=2, bits=8, staleness=1))
    run.deployer.settle()
    run.loop.look(run.deployer, 1.0)
    run.watch(900, 1.0, 1 / 32)
    assert (run.deployer.deployment.cut, run.deployer.moving) == (2, False)


def test_the_fixed_planner_holds_what_there_is_and_greedy_follows_again():
    run = Run()
    run.watch(3, 40.0)
    run.loop.use(Planner.FIXED)
    run.watch(900, 1.0, 1 / 32)
    assert run.deployer.deployment == Deployer().deployment, "however slow the link becomes"
    assert not run.deployer.moving
    run.loop.use(Planner.GREEDY)
    run.watch(900, 1.0, 1 / 32)
    assert run.deployer.moving


def test_jointdnn_chooses_once_and_pins_go_before_it():
    run = Run(codec="uniform8", staleness=2)
    with pytest.raises(PlanError, match="the link has not been measured yet"):
        run.loop.use(Planner.JOINTDNN)
    assert run.loop.planner is Planner.GREEDY
    run.watch(3, 40.0)
    run.loop.use(Planner.JOINTDNN)
    run.watch(3, 40.0)
    if run.deployer.moving:
        run.deployer.settle()
    assert (run.deployer.deployment.staleness, run.deployer.deployment.codec) == (0, "fp32")
    run.loop.pin(bits=8)
    run.watch(3, 40.0)
    assert (run.deployer.deployment.staleness, run.deployer.deployment.codec) == (0, "uniform8")


async def test_who_waits_for_a_standstill_is_told_when_none_comes():
    pause = Pause()
    waiting = asyncio.create_task(pause.pause())
    await asyncio.sleep(0)
    assert pause.requested
    pause.release()
    with pytest.raises(StoppedError, match="resumed, or ended, before it stood still"):
        await waiting


OURS, THEIRS = Caller("ours", frozenset(AN_AGENTS)), Caller("theirs", frozenset(AN_AGENTS))
OPERATOR = Caller("ops", frozenset([Scope.READ, Scope.CONTROL, Scope.OPERATE]))


def trainer_control(sessions):
    async def end(session_id, _resumable):
        sessions.remove(session_id)

    store = SessionStore(None, 1, Quota(1, 1))
    return TrainerControl(sessions, store, TrainerMetrics(CollectorRegistry()), end, asyncio.Event(), "cpu")


@pytest.mark.parametrize(("who", "sees"), [(OURS, True), (THEIRS, False), (OPERATOR, True), (ANYONE, True)])
async def test_a_session_is_there_for_its_subject_and_for_who_operates(who, sees):
    sessions = SessionRegistry(3, 60.0, 60.0, lambda _: None)
    control = trainer_control(sessions)
    set_caller(OURS)
    session_id = sessions.reserve()
    set_caller(who)
    listed = (await control.list_sessions(pb.TrainerControlServiceListSessionsRequest())).sessions
    watched = (await control.get_status(pb.TrainerControlServiceGetStatusRequest())).status
    assert [session.session_id for session in listed] == ([session_id] if sees else [])
    assert [session.subject for session in watched.sessions] == (["ours"] if sees else [])
    assert watched.open_sessions == 1, "how full the trainer is, everybody may know who would come in"
    with pytest.raises(Refusal) as refused:
        await control.close_session(pb.TrainerControlServiceCloseSessionRequest(session_id=session_id))
    expected = grpc.StatusCode.UNAVAILABLE if sees else grpc.StatusCode.NOT_FOUND
    assert refused.value.code is expected, "its model is being built; to others it is not there"
    assert session_id in sessions


def test_a_certificate_alone_makes_nobody_an_operator():
    class Context:
        def auth_context(self):
            return {"x509_common_name": [b"pi-7"]}

    who = Authenticator(None, certificates=True).identify(Context())
    assert (who.subject, who.scopes) == ("pi-7", {Scope.TRAIN, Scope.CONTROL, Scope.READ})


def test_nor_does_a_token_that_was_made_without_a_word_of_it(tmp_path):
    def made(*arguments):
        done = CliRunner().invoke(trainer_app, ["token", "pi-7", f"--file={tmp_path / 'tokens'}", *arguments])
        assert done.exit_code == 0, done.output
        return set(read_tokens(tmp_path / "tokens").find(done.output.strip()).scopes)

    assert made() == {Scope.TRAIN, Scope.CONTROL, Scope.READ}
    assert made("--scope=operate", "--scope=read") == {Scope.OPERATE, Scope.READ}


FULL = pb.EdgeStatus(
    state=pb.RUN_STATE_PAUSED,
    session_id="5e55" * 8,
    trainer="gpu:1",
    model="a.b:c",
    step=50,
    total_steps=200,
    running=Duration(seconds=90),
    deployment=pb.DeploymentStatus(
        cut=2,
        blocks=5,
        staleness_limit=3,
        codec="uniform8",
        bits=8,
        downlink_codec="fp32",
        downlink_bits=32,
        moving_to_cut=4,
    ),
    pinned=pb.Pins(cut=4, staleness=3),
    planner=pb.PLANNER_GREEDY,
    staleness=1,
    stages=pb.StageSeconds(edge=0.004, uplink=0.008, cloud=0.002),
    uplink_bits_per_second=2.5e7,
    round_trip_seconds=0.0405,
    loss=0.5,
    accuracy=0.875,
    seconds_per_step=0.009,
    predicted_seconds_per_step=0.0085,
    last_checkpoint=pb.CheckpointStatus(step=40, age=Duration(seconds=7300)),
    log_level=pb.LOG_LEVEL_INFO,
)


def test_a_status_is_shown_whole_and_on_one_line():
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(status_table(FULL))
    shown = console.export_text()
    for says in (
        "5e55" * 8,
        "paused, 90.0 s",
        "50 of 200 (25%), 9.0 ms each",
        "gpu:1, not attached",
        "2 of 5 blocks here, moving to 4, pinned to 4",
        "1, at most 3, pinned to 3",
        "up uniform8 (8 bits), down fp32 (32 bits)",
        "greedy, which predicted 8.5 ms a step",
        "8.00 ms " + "█" * 30,
        "4.00 ms " + "█" * 15 + " ",
        "up 25.0 Mbit/s, down not known yet, 40.5 ms there and back",
        "87.50%",
        "step 40, 2.0 h ago",
    ):
        assert says in shown, says
    assert status_line(FULL) == ("paused: step 50 of 200, 9.0 ms each, cut 2, K 3, 8 bits, loss 0.5, accuracy 87.5%")


def test_what_is_not_known_is_shown_as_that():
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(status_table(pb.EdgeStatus(state=pb.RUN_STATE_OPENING)))
    shown = console.export_text()
    assert "none on both sides yet" in shown
    assert "planner" not in shown


@pytest.mark.parametrize(
    ("newest", "is_open", "state"),
    [
        (None, False, pb.EDGE_SESSION_STATE_NOTHING_KEPT),
        (CheckpointName(0, 7), False, pb.EDGE_SESSION_STATE_RESUMABLE),
        (CheckpointName(0, 7), True, pb.EDGE_SESSION_STATE_RUNNING),
    ],
)
def test_an_unfinished_session_says_whether_it_goes_on(newest, is_open, state):
    record = SessionRecord(
        session_id="5e55",
        session_epoch=2,
        config={},
        samples=10,
        schedule_steps=9,
        start_digest=None,
        trainer="gpu:1",
        model="a.b:c",
        total_steps=9,
        began="2026-01-31T10:00:00.000001+00:00",
        shared=None if newest is None else (0, 7),
    )
    (status,) = session_statuses([(record, newest, is_open)])
    assert status.state == state
    assert status.HasField("checkpoint_step") == (newest is not None)
    assert status.began.ToJsonString() == "2026-01-31T10:00:00.000001Z"
