"""Tokens as `cloud-trainer token` makes them."""

from typer.testing import CliRunner

from cloud_trainer.main import app as trainer_app
from shared.transport.auth.tokens import Scope, read_tokens


def test_a_token_makes_nobody_an_operator_unless_it_says_so(tmp_path):
    def made(*arguments):
        done = CliRunner().invoke(trainer_app, ["token", "pi-7", f"--file={tmp_path / 'tokens'}", *arguments])
        assert done.exit_code == 0, done.output
        return set(read_tokens(tmp_path / "tokens").find(done.output.strip()).scopes)

    assert made() == {Scope.TRAIN, Scope.CONTROL, Scope.READ}
    assert made("--scope=operate", "--scope=read") == {Scope.OPERATE, Scope.READ}
