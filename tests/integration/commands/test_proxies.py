"""A proxy's variables: a run and the doctor dial the same way, and name the proxy where one is on it."""

import pytest

from cloud_trainer.control.certificates import Identity, issue
from edge_agent.doctor.examine import examine_trainers
from edge_agent.doctor.finding import Status
from edge_agent.run import run_training
from shared.errors import ConfigError, UnreachableError
from tests.support.peers.connect_proxy import connect_proxy
from tests.support.peers.strangers import Doorkeeper
from tests.support.running import GIVE_UP_AT_ONCE, edge_config, held_port, running_trainer

FAR = "trainer.example:50051"
"""An address that the proxy alone can dial."""
SHORT = ("training.max_steps=2", GIVE_UP_AT_ONCE)
CLEAR = (f"trainer.address={FAR}", "trainer.insecure=true")


@pytest.fixture
def proxied(monkeypatch):
    """Set a variable to a proxy at a port of this machine, with credentials. Return how a sentence names it."""

    def set_to(port, variable="http_proxy", host="127.0.0.1"):
        monkeypatch.setenv(variable, f"http://user:secret@{host}:{port}")
        return f"{variable}=http://{host}:{port}"

    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return set_to


async def examined(*flags):
    return {finding.check: finding for finding in await examine_trainers(edge_config(*flags))}


def assert_well(findings):
    assert {found.status for found in findings.values()} <= {Status.OK, Status.ADVICE}, findings


async def test_a_trainer_on_this_machine_is_dialled_itself(proxied):
    with held_port() as nobody:
        proxied(nobody)
        async with running_trainer() as server:
            assert_well(await examined(f"trainer.address={server.address}"))
            result = await run_training(edge_config(*SHORT, f"trainer.address={server.address}"))
    assert result.summary.steps == 2


@pytest.mark.slow
async def test_trainers_on_this_machine_dial_each_other_themselves(proxied):
    with held_port() as nobody:
        proxied(nobody)
        async with running_trainer('peers.allowed=["127.0.0.1:*"]') as near, running_trainer() as far:
            tables = f'[{{name="near", address="{near.address}"}}, {{name="far", address="{far.address}"}}]'
            flags = (f"trainers={tables}", "placement.edge=0:2", "placement.near=2:3", "placement.far=3:")
            assert_well(await examined(*flags))
            result = await run_training(edge_config("training.max_steps=2", *flags))
    assert result.summary.steps == 2


@pytest.mark.slow
async def test_a_trainer_is_trained_with_through_a_proxy_and_the_doctor_says_that_it_is_there(proxied):
    async with running_trainer() as server, connect_proxy(port_of(server)) as proxy:
        named = proxied(proxy.port)
        findings = await examined(*CLEAR)
        result = await run_training(edge_config(*SHORT, *CLEAR))
    assert_well(findings)
    assert findings["connection"].result == f"port 50051 through the proxy of {named} is open"
    assert result.summary.steps == 2


@pytest.mark.slow
async def test_the_proxy_of_the_configuration_counts_before_the_environments(proxied):
    async with running_trainer() as server, connect_proxy(port_of(server)) as proxy:
        with held_port() as nobody:
            proxied(nobody)
            chosen = *CLEAR, f"trainer.proxy=http://127.0.0.1:{proxy.port}"
            findings = await examined(*chosen)
            result = await run_training(edge_config(*SHORT, *chosen))
    assert_well(findings)
    named = f"the proxy of trainer.proxy=http://127.0.0.1:{proxy.port}"
    assert findings["connection"].result == f"port 50051 through {named} is open"
    assert result.summary.steps == 2


async def test_without_a_proxy_by_the_configuration_the_environments_is_none(proxied):
    async with running_trainer() as server, connect_proxy(port_of(server)) as proxy:
        proxied(proxy.port)
        chosen = *CLEAR, "trainer.proxy=none"
        findings = await examined(*chosen)
        with pytest.raises(UnreachableError) as raised:
            await run_training(edge_config(*SHORT, *chosen, "trainer.connect_timeout_seconds=1"))
    assert findings["name"].status is Status.FIX, "the trainer's own name, which nobody knows"
    assert "proxy" not in str(raised.value) + str(findings)
    assert proxy.asked.empty()


@pytest.mark.parametrize(
    "named",
    ["socks5://proxy:1080", "https://proxy:3128", "proxy:3128", "http://user:secret@proxy:3128", "http://a:b", ""],
)
def test_a_proxy_that_cannot_be_one_is_refused_before_anything_is_dialled(named):
    with pytest.raises(ConfigError, match=r"trainer\.proxy is .*; it must be http://host:port without user"):
        edge_config(f'trainer.proxy="{named}"')


async def test_tls_goes_through_a_proxy(proxied, tmp_path):
    door = Doorkeeper(tmp_path)
    issue(door.authority, Identity("edge"), 100).write(tmp_path / "edge.pem", tmp_path / "edge.key")
    token = tmp_path / "token"
    token.write_text(door.tokens["ours"])
    token.chmod(0o600)
    files = {"tls.ca": "ca.pem", "tls.certificate": "edge.pem", "tls.key": "edge.key", "trainer.token_file": "token"}
    flags = [f"{key}={tmp_path / name}" for key, name in files.items()]
    async with running_trainer(*door.flags) as server, connect_proxy(port_of(server)) as proxy:
        proxied(proxy.port, "https_proxy")
        assert_well(await examined(*flags, f"trainer.address={FAR}", "tls.server_name=localhost"))
        findings = await examined(*flags, f"trainer.address={FAR}")
    assert findings["encryption"].status is Status.FIX
    assert "tls.server_name" in findings["encryption"].remedy


async def test_a_proxy_that_is_not_there_is_named_without_its_credentials(proxied):
    with held_port() as nobody:
        named = proxied(nobody)
        findings = await examined(*CLEAR)
        with pytest.raises(UnreachableError) as raised:
            await run_training(edge_config(*SHORT, *CLEAR, "trainer.connect_timeout_seconds=1"))
    assert str(raised.value).startswith(f"no trainer answered at {FAR} (through the proxy of {named}) within 1 s")
    assert findings["connection"].status is Status.FIX
    assert named in findings["connection"].result
    assert "http_proxy" in findings["connection"].remedy
    assert "no_proxy" in findings["connection"].remedy
    assert "secret" not in str(raised.value) + str(findings)


async def test_a_proxy_that_opens_no_way_is_told_by_its_own_answer(proxied):
    with held_port() as nobody:
        async with connect_proxy(nobody, answer="403 Forbidden") as proxy:
            named = proxied(proxy.port)
            findings = await examined(*CLEAR)
    assert named in findings["connection"].result
    assert "403 Forbidden" in findings["connection"].result
    assert "CONNECT" in findings["connection"].remedy


async def test_a_proxy_whose_name_has_no_address_is_named(proxied):
    proxied(3128, host="not..a.name")
    findings = await examined(*CLEAR)
    assert findings["name"].status is Status.FIX
    assert "http_proxy" in findings["name"].remedy


def port_of(server):
    return int(server.address.rpartition(":")[2])
