"""`edge-agent init`: both files load as they are, say what was answered, and never replace others."""

import pytest
from typer.testing import CliRunner

from cloud_trainer.config import TrainerConfig
from edge_agent.config import EdgeConfig
from edge_agent.main import app
from shared.config import load_config
from shared.errors import ConfigError

NEAR = ("--model=mine:make_net", "--train=mine:readings", "--test=", "--trainer=127.0.0.1:50051", "--output=runs/a b")


def written(folder, *options, answers=""):
    """Run the command; return both configurations and what it printed."""
    done = CliRunner().invoke(app, ["init", str(folder), *options], input=answers)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    configs = (
        load_config(EdgeConfig, folder / "edge.toml", environ={}),
        load_config(TrainerConfig, folder / "trainer.toml", environ={}),
    )
    return (*configs, done.output)


def test_options_answer_the_questions(tmp_path):
    edge, trainer, printed = written(tmp_path / "new", *NEAR)
    assert (edge.model.factory, edge.data.train.factory, edge.data.test) == ("mine:make_net", "mine:readings", None)
    assert (edge.trainer.address, str(edge.output.directory)) == ("127.0.0.1:50051", "runs/a b")
    assert (trainer.server.listen, trainer.models.allowed, trainer.auth.tokens) == ("127.0.0.1:50051", ("mine",), None)
    assert "\nPYTHONPATH=. edge-agent run --config edge.toml" in printed, "mine is not installed"


def test_a_trainer_elsewhere_has_its_port_closed(tmp_path):
    edge, trainer, printed = written(
        tmp_path, *NEAR[:2], "--test=mine:held_out", "--trainer=gpu.example.org:5000", "--output=o"
    )
    assert edge.data.test.factory == "mine:held_out"
    assert (str(edge.tls.ca), trainer.server.listen) == ("certificates/ca.pem", "0.0.0.0:5000")
    assert str(trainer.auth.tokens) == "certificates/tokens.toml"
    assert "cloud-trainer certs certificates --host gpu.example.org" in printed


def test_a_trainer_at_an_address_of_ipv6_listens_there_and_has_it_in_its_certificate(tmp_path):
    _, trainer, printed = written(tmp_path, *NEAR[:3], "--trainer=[2001:db8::7]:5000", "--output=o")
    assert trainer.server.listen == "[::]:5000"
    assert "cloud-trainer certs certificates --host 2001:db8::7\n" in printed


def test_a_person_answers_five_questions_of_which_nothing_takes_the_default(tmp_path):
    edge, trainer, printed = written(tmp_path, answers="\n\n\n\n\n")
    plain = EdgeConfig()
    assert (edge.model, edge.data, edge.trainer) == (plain.model, plain.data, plain.trainer)
    assert trainer.models.allowed == ("shared.model.zoo",)
    assert printed.count("]: ") == 5
    assert "\nedge-agent run --config edge.toml" in printed, "the model is in our package"


@pytest.mark.parametrize(
    ("options", "answers", "sentence"),
    [
        (("--model=nothing",), "\n\n\n\n", "model.factory"),
        (("--model=a:b", "--trainer=nowhere"), "\n\n\n", "trainer.address"),
        (("--model=a:b",), "\n\n", "nobody answers what --trainer is"),
    ],
)
def test_a_wrong_or_missing_answer_writes_nothing(tmp_path, options, answers, sentence):
    with pytest.raises(ConfigError, match=sentence):
        written(tmp_path / "new", *options, answers=answers)
    assert not (tmp_path / "new").exists()


def test_no_file_is_replaced(tmp_path):
    (tmp_path / "trainer.toml").write_text("# mine")
    with pytest.raises(ConfigError, match=r"trainer\.toml is there already"):
        written(tmp_path, *NEAR)
    assert (tmp_path / "trainer.toml").read_text() == "# mine"
    assert not (tmp_path / "edge.toml").exists()
