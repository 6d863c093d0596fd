"""Mistakes of a user end with one clear sentence and the documented exit code, through the real command line."""

import asyncio
import socket
import threading
from contextlib import closing, contextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from shared.errors import ExitCode
from shared.version import PROTOCOL_VERSION
from tests.support.commands import agent_fails, assert_one_sentence, trainer_fails
from tests.support.running import held_port, run_agent, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")


# What a user can get wrong on the edge alone.


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ('model.factory="no.such.module:net"', "module 'no.such.module' cannot be imported"),
        ('model.factory="shared.model.zoo:no_such_net"', "has no callable 'no_such_net'"),
        ("model.kwargs={inputs=10}", "10"),
        ("model.kwargs={no_such_argument=1}", "no_such_argument"),
        ("deployment.cut=4", "this model has 3 blocks"),
        ("deployment.cut=99", "so a cut is 1 to 3"),
        ('model.learns=["*lora_*"]', "model.learns names '*lora_*', but the model has no parameter of that name"),
        (
            'training.optimizer.groups=[{match=["*.gamma"], weight_decay=0.0}]',
            "training.optimizer.groups[0].match names '*.gamma', but no parameter that learns and is in no earlier group",
        ),
    ],
)
def test_a_model_that_cannot_be(flag, says):
    agent_fails(ExitCode.MODEL, says, flags=[flag])


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("deployment.cut=0", "deployment.cut is 0; it must be an integer of 1 or more"),
        ("deployment.cutt=1", "unknown key deployment.cutt; did you mean deployment.cut?"),
        ("deployment.codec=zip", 'deployment.codec is "zip"; it must be one of raw, fp32'),
        ("deployment.downlink_codec=zip", 'deployment.downlink_codec is "zip"; it must be one of raw, fp32'),
        ("training.epochs=many", 'training.epochs is "many"; it must be an integer of 1 or more'),
        ("output.directory=/proc/no/such", "output.directory: folder /proc/no/such cannot be made"),
    ],
)
def test_a_configuration_that_cannot_be(flag, says):
    agent_fails(ExitCode.CONFIG, says, flags=[flag])


def test_what_cannot_begin_leaves_no_folder_for_its_results(tmp_path):
    results = tmp_path / "runs" / "first"
    traced = f"output.trace={results / 'traces' / 'run.json'}"
    agent_fails(
        ExitCode.MODEL, "so a cut is 1 to 3", flags=["deployment.cut=99", f"output.directory={results}", traced]
    )
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_file_that_cannot_be(tmp_path):
    wrong = tmp_path / "edge.toml"
    wrong.write_text("[training]\nepochs = 0\n")
    for path, says in ((wrong, f"{wrong}: training.epochs is 0"), (tmp_path / "none.toml", "does not exist")):
        assert_one_sentence("edge-agent", run_agent("run", "--config", str(path)), ExitCode.CONFIG, says)


@pytest.mark.slow
def test_a_variable_that_cannot_be():
    agent_fails(ExitCode.CONFIG, "EDGE_AGENT_TRAINING__SEED", environ={"EDGE_AGENT_TRAINING__SEED": "one"})


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ('data.train={factory="no.such.module:data"}', "module 'no.such.module' cannot be imported"),
        ('data.train={factory="edge_agent.data:digits", kwargs={split="nights"}}', "nights"),
        ("data.batch_size=5000", "or less, or data.drop_last = false"),
        ('data.collate="tests.support.samples:absent"', "data.collate: factory 'tests.support.samples:absent'"),
        ('data.collate="tests.support.batches:alone"', "it must return a pair of inputs and labels"),
    ],
)
def test_a_dataset_that_cannot_be(flag, says):
    agent_fails(ExitCode.DATA, says, flags=[flag])


def test_a_test_set_of_another_structure_when_a_function_collates():
    agent_fails(
        ExitCode.DATA,
        "data.collate: 'tests.support.batches:noisy' returned inputs float32 of shape (32, 1, 8, 8), and inputs float32 of "
        "shape (32, 64) for the first batch of data.train",
        flags=[
            'data.train={factory="tests.support.samples:FlatDigits"}',
            'data.test={factory="tests.support.samples:Pictures"}',
            'data.collate="tests.support.batches:noisy"',
        ],
    )


def test_a_name_of_an_input_that_the_forward_lacks():
    agent_fails(
        ExitCode.MODEL,
        "the inputs have the key 'mask', which NamedEncoder.forward() does not take; the keys must be names of its parameters: "
        "input_ids, attention_mask, types",
        flags=[
            'model.factory="tests.support.models.several:NamedEncoder"',
            "model.kwargs={vocabulary=50, classes=4}",
            'data.train={factory="tests.support.samples:Words"}',
            'data.collate="tests.support.batches:misspelt"',
        ],
    )


def marked(split, tensors):
    return f'data.{split}={{factory="tests.support.samples:ElseMarkedDigits", kwargs={{tensors={tensors}, split="{split}"}}}}'


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        (
            2,
            "loss 'cross_entropy' takes one tensor of labels, and the labels are 2; let training.loss be a function of yours",
        ),
        (17, "the labels of a batch are 17 tensors; at most 16 are possible"),
    ],
)
def test_labels_of_several_tensors_that_the_loss_cannot_take(tensors, says):
    agent_fails(ExitCode.MODEL, says, flags=[marked("train", tensors)])


@pytest.mark.slow
@pytest.mark.usefixtures("serves_the_next")
def test_a_test_set_whose_labels_are_of_another_number_of_tensors(trainer):
    agent_fails(
        ExitCode.DATA,
        "the labels of a batch are 3 tensors, and those of the first batch of data.train 2; all batches must be alike",
        flags=[
            marked("train", 2),
            marked("test", 3),
            'training.loss="tests.support.models.losses:of_the_first_of_several"',
            "training.max_steps=2",
        ],
        trainer=trainer,
    )


def test_an_unknown_flag():
    done = run_agent("run", "--no-such-flag")
    assert done.returncode == ExitCode.USAGE
    assert "--no-such-flag" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_for_metrics_or_a_page_that_is_in_use():
    with listener() as address:
        agent_fails(ExitCode.LISTEN, f"metrics.listen: cannot listen on {address}", flags=[f"metrics.listen={address}"])
        agent_fails(ExitCode.LISTEN, f"web.listen: cannot listen on {address}", flags=[f"web.listen={address}"])


def test_a_page_that_other_machines_would_reach_in_clear_text():
    says = ("web.listen", "0.0.0.0:8080, which other machines may reach, without certificate and tokens")
    agent_fails(ExitCode.CONFIG, "web: ", *says[1:], flags=["web.listen=0.0.0.0:8080"])
    trainer_fails(ExitCode.CONFIG, "web: ", *says[1:], flags=["web.listen=0.0.0.0:8080"])


@pytest.mark.first_case
@pytest.mark.usefixtures("serves_the_next")
@pytest.mark.parametrize("when", ["forward", "backward", "evaluation"])
@pytest.mark.parametrize("block", [0, 2], ids=["edge", "cloud"])
def test_a_model_that_fails_while_it_is_trained(trainer, block, when):
    code = ExitCode.MODEL if block == 0 else ExitCode.REFUSED
    place = f"the backward of block{'' if block == 0 else 's'} " if when == "backward" else "block "
    names = "'1' to '2'" if when == "backward" and block else f"'{block}'"
    said = agent_fails(
        code,
        f"{place}{names} failed with RuntimeError: the {when} is not written yet",
        flags=[
            'model.factory="tests.support.models.failing:failing"',
            f'model.kwargs={{block={block}, when="{when}"}}',
            'data.test={factory="tests.support.samples:FlatDigits"}',
            "training.max_steps=2",
        ],
        trainer=trainer,
    )
    assert "session opened" in said


# What goes wrong with the trainer.


@contextmanager
def listener():
    """A port that is in use, by something that accepts connections and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def greeting(words):
    """A listener that sends text of its own to every caller."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = server.accept()
                connection.sendall(words)
                connection.close()
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.mark.usefixtures("serves_the_next")
def test_a_trainer_whose_port_is_in_use(trainer):
    trainer_fails(ExitCode.LISTEN, f"server.listen: cannot listen on {trainer}", flags=[f"server.listen={trainer}"])


def test_a_trainer_whose_address_or_file_cannot_be(tmp_path):
    trainer_fails(
        ExitCode.LISTEN,
        "server.listen: cannot listen on 203.0.113.7:0",
        flags=["server.listen=203.0.113.7:0", "server.insecure=true"],
    )
    place = tmp_path / "no" / "address"
    flags = ["server.listen=127.0.0.1:0", f"server.address_file={place}"]
    trainer_fails(ExitCode.CONFIG, f"server.address_file: {place} cannot be written", flags=flags)


def test_a_trainer_that_is_not_there():
    with held_port() as port:
        agent_fails(
            ExitCode.UNREACHABLE,
            f"no trainer answered at 127.0.0.1:{port} within 0.5 s",
            flags=["trainer.connect_timeout_seconds=0.5"],
            trainer=f"127.0.0.1:{port}",
        )


@pytest.mark.first_case
@pytest.mark.parametrize("words", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "http"])
def test_something_that_listens_and_is_no_grpc(words):
    with listener() if words is None else greeting(words) as address:
        agent_fails(
            ExitCode.UNREACHABLE,
            f"no trainer answered at {address} within 1 s",
            flags=["trainer.connect_timeout_seconds=1"],
            trainer=address,
        )


async def test_a_grpc_server_that_is_no_trainer():
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    try:
        await asyncio.to_thread(
            agent_fails, ExitCode.PROTOCOL, f"{address} answers, but not as a trainer", trainer=address
        )
    finally:
        await server.stop(None)


async def test_a_trainer_that_speaks_another_version(monkeypatch):
    monkeypatch.setattr("cloud_trainer.sessions.fencing.PROTOCOL_VERSION", PROTOCOL_VERSION + 2)
    async with running_trainer() as server:
        says = f"the caller speaks protocol version {PROTOCOL_VERSION}; this trainer speaks {PROTOCOL_VERSION + 2}"
        await asyncio.to_thread(agent_fails, ExitCode.PROTOCOL, says, trainer=server.address)


# What the trainer refuses.


@pytest.mark.usefixtures("serves_the_next")
def test_a_model_that_the_operator_has_not_allowed(trainer):
    said = agent_fails(
        ExitCode.REFUSED,
        f"the trainer at {trainer} refused: factory 'benchmarks.networks:two_convolutions' is not allowed (models.allowed)",
        "shared.model.zoo",
        flags=[
            'model.factory="benchmarks.networks:two_convolutions"',
            "model.kwargs={channels=4}",
            'data.train={factory="benchmarks.networks:RandomImages", kwargs={size=8}}',
        ],
        trainer=trainer,
    )
    assert "session opened" not in said


@pytest.mark.usefixtures("serves_the_next")
def test_an_unknown_loss(trainer):
    agent_fails(
        ExitCode.MODEL,
        "loss 'hinge' is unknown; use one of cross_entropy",
        flags=["training.loss=hinge"],
        trainer=trainer,
    )


TWO_CLASSES = [
    'model.factory="shared.model.zoo:bilstm"',
    "model.kwargs={vocabulary=50, classes=2}",
    "deployment.cut=2",
]


@pytest.mark.slow
def test_labels_out_of_range():
    agent_fails(
        ExitCode.DATA,
        "of data.train is ",
        ", and the model has 2 outputs, for classes of 0 to 1; number the classes from 0",
        flags=[
            *TWO_CLASSES,
            'data.train={factory="tests.support.samples:Sequences"}',
        ],
    )


@pytest.mark.slow
def test_labels_out_of_range_in_an_evaluation_only():
    agent_fails(
        ExitCode.DATA,
        "of data.test is ",
        ", and the model has 2 outputs, for classes of 0 to 1;",
        flags=[
            *TWO_CLASSES,
            'data.train={factory="tests.support.samples:Sequences", kwargs={classes=2}}',
            'data.test={factory="tests.support.samples:Sequences"}',
            "training.max_steps=2",
        ],
    )
