"""Tokens that `cloud-trainer token` makes."""

import os
import stat

import pytest
from typer.testing import CliRunner

from cloud_trainer.main import app as trainer_app
from shared.client.config import ClientTlsConfig, TrainerAddressConfig
from shared.client.credentials import trainer_access
from shared.errors import ConfigError
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tokens import read_tokens


def test_a_token_makes_nobody_an_operator_unless_it_says_so(tmp_path):
    def made(*arguments):
        done = CliRunner().invoke(trainer_app, ["token", "pi-7", f"--file={tmp_path / 'tokens'}", *arguments])
        assert done.exit_code == 0, done.output
        return set(read_tokens(tmp_path / "tokens").find(done.output.strip()).scopes)

    assert made() == {Scope.TRAIN, Scope.CONTROL, Scope.READ}
    assert made("--scope=operate", "--scope=read") == {Scope.OPERATE, Scope.READ}


@pytest.fixture
def open_to_all():
    """Set the mask that most systems have: redirected output is readable by all users."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
def test_a_token_goes_to_a_file_as_an_agent_takes_it(tmp_path):
    tokens, out = tmp_path / "tokens.toml", tmp_path / "pi-7.token"
    done = CliRunner().invoke(trainer_app, ["token", "pi-7", f"--file={tokens}", f"--out={out}"])
    assert (done.exit_code, done.output) == (0, "")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    access = trainer_access(TrainerAddressConfig(token_file=out, insecure=True), ClientTlsConfig())
    assert not access.token_broken()
    assert read_tokens(tokens).find(out.read_text().strip()).subject == "pi-7"


@pytest.mark.parametrize("there", [True, False])
def test_a_token_that_cannot_be_kept_is_not_made(tmp_path, there):
    tokens = tmp_path / "tokens.toml"
    out = tmp_path / "pi-7.token" if there else tmp_path / "absent" / "pi-7.token"
    if there:
        out.write_text("in use")
    with pytest.raises(
        ConfigError, match="is there already and may be in use" if there else "--out .* cannot be written"
    ):
        CliRunner().invoke(trainer_app, ["token", "pi-7", f"--file={tokens}", f"--out={out}"], catch_exceptions=False)
    assert not tokens.exists()
    assert not there or out.read_text() == "in use"


def test_no_token_is_left_that_the_trainer_does_not_know(tmp_path):
    out = tmp_path / "pi-7.token"
    with pytest.raises(ConfigError, match="cannot be written"):
        CliRunner().invoke(
            trainer_app,
            ["token", "pi-7", f"--file={tmp_path / 'absent' / 'x'}", f"--out={out}"],
            catch_exceptions=False,
        )
    assert not out.exists()
