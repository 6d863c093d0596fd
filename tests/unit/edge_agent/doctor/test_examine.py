"""The doctor's judgement of credentials, on both sides of every bound."""

import datetime

from cloud_trainer.control.certificates import Identity, issue, make_authority
from edge_agent.doctor.examine import check_credentials
from edge_agent.doctor.finding import Status, fine
from edge_agent.doctor.reach import SOON
from tests.support.running import edge_config

OK, ADVICE, FIX, SKIPPED = Status.OK, Status.ADVICE, Status.FIX, Status.SKIPPED
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


def test_the_agents_own_certificate_is_good_for_a_while(tmp_path):
    authority = make_authority("ours", 100)
    authority.write(tmp_path / "ca.pem", tmp_path / "ca.key")

    def judged(days, moment):
        issue(authority, Identity("edge"), days).write(tmp_path / "edge.pem", tmp_path / "edge.key")
        files = {"ca": "ca.pem", "certificate": "edge.pem", "key": "edge.key"}
        config = edge_config(*(f"tls.{key}={tmp_path / name}" for key, name in files.items()))
        return check_credentials(config.trainer, config.tls, moment)[0].status

    now = datetime.datetime.now(datetime.UTC)
    assert judged(SOON.days + 1, now) is OK
    assert judged(SOON.days - 1, now) is ADVICE
    assert judged(0, now) is FIX


def test_credentials_that_cannot_be_used_must_be_mended(tmp_path):
    token = tmp_path / "token"
    token.write_text("abc\n")
    token.chmod(0o644)

    def judged(*flags):
        config = edge_config(*flags)
        return check_credentials(config.trainer, config.tls, NOON)

    open_to_all, access = judged(f"trainer.token_file={token}")
    assert (open_to_all.status, access) == (FIX, None)
    assert "chmod 600" in open_to_all.result
    token.chmod(0o600)
    assert judged(f"trainer.token_file={token}")[0].status is OK
    elsewhere, _ = judged(f"trainer.token_file={token}", "trainer.address=gpu.example.org:1")
    assert "clear text" in elsewhere.result
    assert judged()[0] == fine("credentials", "none are set")
