"""The doctor and real trainers: well, not there, of another authority, asking for another token; several of them, or none."""

import asyncio
import json

import pytest

from cloud_trainer.control.certificates import Identity, issue, make_authority
from edge_agent.doctor.examine import WAY_TO_THE_TRAINER, examine_trainers
from edge_agent.doctor.finding import Status
from shared.errors import ExitCode
from shared.transport.auth.scopes import Scope
from tests.support.peers.strangers import Doorkeeper
from tests.support.running import edge_config, run_agent, running_trainer, trainer_process

NOBODY = "127.0.0.1:1"
FAR_PART = "placement.far=3:"
"""Flag that gives the second trainer of `chain` blocks, too."""
DIALS = 'peers.allowed=["127.0.0.1:*"]'
"""Flag that lets the first trainer of `chain` dial the second."""


@pytest.fixture
def door(tmp_path):
    return Doorkeeper(tmp_path)


@pytest.fixture
def friend(door, tmp_path):
    """Return the flags that an agent needs for the door, by key, to be changed one at a time."""
    issue(door.authority, Identity("edge"), 100).write(tmp_path / "edge.pem", tmp_path / "edge.key")
    token = tmp_path / "token"
    token.write_text(door.tokens["ours"])
    token.chmod(0o600)
    files = {"tls.ca": "ca.pem", "tls.certificate": "edge.pem", "tls.key": "edge.key", "trainer.token_file": "token"}
    return {key: tmp_path / name for key, name in files.items()}


async def examined(address, flags):
    """The findings by check, in order."""
    return await examined_with(f"trainer.address={address}", *(f"{key}={value}" for key, value in flags.items()))


async def examined_with(*flags):
    """The same for any configuration."""
    return {finding.check: finding for finding in await examine_trainers(edge_config(*flags))}


def chain(near, far, more=""):
    """Flags for two trainers at these addresses, the first of which has blocks. more: keys of its table."""
    tables = f'{{name="near", address="{near}"{more}}}, {{name="far", address="{far}"}}'
    return f"trainers=[{tables}]", "placement.edge=0:2", "placement.near=2:3"


def of_one(name, findings):
    """Return the findings about the trainer of this name, by check, as they are for one trainer."""
    mark = f"{name}: "
    return {check.removeprefix(mark): found for check, found in findings.items() if check.startswith(mark)}


def assert_fails_at(check, findings, *says):
    """This check must be fixed, those before it need not, and those after it were not tried."""
    assert tuple(findings) == WAY_TO_THE_TRAINER
    assert findings[check].status is Status.FIX, findings
    for part in says:
        assert part in findings[check].result + findings[check].remedy
    position = WAY_TO_THE_TRAINER.index(check)
    assert all(findings[before].status is not Status.FIX for before in WAY_TO_THE_TRAINER[:position])
    if position < WAY_TO_THE_TRAINER.index("token"):
        for after in WAY_TO_THE_TRAINER[position + 1 :]:
            assert (findings[after].status, findings[after].result) == (Status.SKIPPED, f"needs {check}")


async def test_a_way_that_is_well_is_measured_and_nothing_is_left_behind(door, friend, tmp_path):
    kept = tmp_path / "kept"
    async with running_trainer(*door.flags, f"checkpoints.location={kept}") as server:
        findings = await examined(server.address, friend)
        assert server.counted("isthmus_sessions") == 0
    assert tuple(findings) == WAY_TO_THE_TRAINER
    judged = {check: finding.status for check, finding in findings.items()}
    # The trainer's certificate is good for a day, which is worth a word.
    assert judged.pop("encryption") is Status.ADVICE
    assert set(judged.values()) <= {Status.OK, Status.ADVICE}, findings
    assert findings["token"].result == "this agent may train, control, read"
    assert "bit/s" in findings["uplink"].result
    assert "bit/s" in findings["downlink"].result
    assert not kept.exists(), "no session was opened"


async def test_a_trainer_in_clear_text_on_this_machine_is_well():
    async with running_trainer() as server:
        findings = await examined(server.address, {})
    assert findings["encryption"].status is Status.OK
    assert all(finding.status in (Status.OK, Status.ADVICE) for finding in findings.values())


async def test_a_trainer_that_is_not_there():
    assert_fails_at("connection", await examined(NOBODY, {}), "port 1", "cloud-trainer serve")


async def test_a_name_that_has_no_address():
    assert_fails_at("name", await examined("not..a.name:1", {}), "trainer.address")


async def test_a_trainer_of_another_authority(door, friend, tmp_path):
    make_authority("another", 1).write(tmp_path / "other.pem", tmp_path / "other.key")
    async with running_trainer(*door.flags) as server:
        findings = await examined(server.address, {**friend, "tls.ca": tmp_path / "other.pem"})
    assert_fails_at("encryption", findings, "tls.ca")


async def test_a_trainer_that_no_public_authority_knows(door):
    async with running_trainer(*door.flags) as server:
        assert_fails_at("encryption", await examined(server.address, {"tls.enabled": "true"}), "tls.ca")


async def test_a_trainer_by_another_name(door, friend):
    async with running_trainer(*door.flags) as server:
        findings = await examined(server.address, {**friend, "tls.server_name": "gpu.example.org"})
    assert_fails_at("encryption", findings, "gpu.example.org", "tls.server_name")


async def test_an_agent_without_the_certificate_that_the_trainer_wants(door, friend):
    flags = {key: value for key, value in friend.items() if key not in ("tls.certificate", "tls.key")}
    async with running_trainer(*door.flags) as server:
        assert_fails_at("encryption", await examined(server.address, flags), "tls.certificate")


async def test_only_one_of_the_two_speaks_tls(door, friend):
    async with running_trainer(*door.flags) as server:
        findings = await examined(server.address, {"trainer.token_file": friend["trainer.token_file"]})
        assert_fails_at("encryption", findings, "tls.ca")
    async with running_trainer() as server:
        assert_fails_at("encryption", await examined(server.address, friend), "does not speak TLS")


async def test_a_token_that_is_none_of_the_trainers(door, friend):
    door.write_tokens({"theirs": list(Scope)})
    async with running_trainer(*door.flags) as server:
        findings = await examined(server.address, friend)
    assert_fails_at("token", findings, "not known here", "cloud-trainer token")
    assert findings["round trip"].status is not Status.SKIPPED, "health asks for no token"


async def test_a_token_that_lacks_a_scope(door, friend, tmp_path):
    door.write_tokens({"ours": [Scope.READ, Scope.CONTROL]})
    (tmp_path / "token").write_text(door.tokens["ours"])
    async with running_trainer(*door.flags) as server:
        findings = await examined(server.address, friend)
    assert_fails_at("token", findings, "lacks the scope train")
    assert findings["protocol"].status is Status.SKIPPED
    assert findings["downlink"].status in (Status.OK, Status.ADVICE)


async def test_something_else_that_listens_there():
    async def hang_up(_reader, writer):
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        assert_fails_at("service", await examined(f"127.0.0.1:{port}", {}))


def test_the_command_ends_with_its_code_and_names_what_is_broken():
    done = run_agent("doctor", "--json", f"--set=trainer.address={NOBODY}")
    assert done.returncode == ExitCode.UNFIT, done.stderr
    assert done.stderr == "edge-agent: to be fixed before this device can train: connection; the report says how\n"
    statuses = {finding["check"]: finding["status"] for finding in json.loads(done.stdout)}
    assert statuses["python"] == "ok"
    assert statuses["connection"] == "fix"


@pytest.mark.parametrize("alone", [("trainers=[]",), (f"trainer.address={NOBODY}", "placement.edge=0:")])
def test_a_device_that_trains_alone_is_fit_and_told_why_no_trainer_is_asked(alone):
    done = run_agent("doctor", "--json", *(f"--set={flag}" for flag in alone))
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    *device, last = json.loads(done.stdout)
    assert (last["check"], last["status"]) == ("trainer", "skipped")
    assert not {finding["check"] for finding in device} & set(WAY_TO_THE_TRAINER)


async def test_a_trainer_without_a_part_in_the_placement_is_not_asked():
    dialled = []

    async def note(_reader, writer):
        dialled.append(writer)
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as spare, running_trainer() as server:
        address = f"127.0.0.1:{spare.sockets[0].getsockname()[1]}"
        findings = await examined_with(*chain(server.address, address))
    assert dialled == []
    assert tuple(of_one("near", findings)) == WAY_TO_THE_TRAINER
    assert tuple(of_one("far", findings)) == ("trainer",)
    assert findings["far: trainer"].status is Status.SKIPPED


async def test_every_trainer_of_a_chain_is_examined_by_its_name():
    async with running_trainer(DIALS) as near, running_trainer() as far:
        findings = await examined_with(*chain(near.address, far.address), FAR_PART)
    near_s, far_s = (tuple(f"{name}: {check}" for check in WAY_TO_THE_TRAINER) for name in ("near", "far"))
    assert tuple(findings) == (*near_s, "near: link to far", *far_s)
    assert {found.status for found in findings.values()} <= {Status.OK, Status.ADVICE}, findings


async def test_a_chain_of_which_one_trainer_is_away_says_which_and_examines_the_other():
    async with running_trainer() as far:
        findings = await examined_with(*chain(NOBODY, far.address), FAR_PART)
    near = of_one("near", findings)
    assert_fails_at("connection", near)
    assert {found.status for found in of_one("far", findings).values()} <= {Status.OK, Status.ADVICE}


async def test_the_token_of_each_trainer_is_its_own(tmp_path):
    missing = tmp_path / "token"
    async with running_trainer() as near, running_trainer() as far:
        findings = await examined_with(*chain(near.address, far.address, f', token_file="{missing}"'), FAR_PART)
    assert_fails_at("credentials", of_one("near", findings), str(missing))
    assert findings["far: credentials"].result == "none are set"


async def test_a_trainer_in_clear_text_elsewhere_is_advised_against_unless_its_own_table_allows_it(monkeypatch):
    monkeypatch.setattr("edge_agent.doctor.reach.is_loopback", lambda _address: False)
    async with running_trainer() as near, running_trainer() as far:
        findings = await examined_with(*chain(near.address, far.address, ", insecure=true"), FAR_PART)
    assert findings["near: encryption"].status is Status.OK
    assert findings["far: encryption"].status is Status.ADVICE


@pytest.mark.slow
def test_the_command_names_the_trainer_of_a_chain_that_is_away_and_is_content_when_none_is():
    def report(*flags):
        return run_agent("doctor", "--json", *(f"--set={flag}" for flag in (*flags, FAR_PART)))

    with trainer_process(DIALS) as (_, address):
        one_away, none_away = report(*chain(address, NOBODY)), report(*chain(address, address))
    assert (one_away.returncode, none_away.returncode) == (ExitCode.UNFIT, ExitCode.OK), none_away.stderr
    assert one_away.stderr.endswith("train: near: link to far, far: connection; the report says how\n")
    statuses = {finding["check"]: finding["status"] for finding in json.loads(one_away.stdout)}
    assert (statuses["near: connection"], statuses["far: connection"]) == ("ok", "fix")
