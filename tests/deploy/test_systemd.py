"""Agent and trainer as services of a real systemd: installed by the script, booted, killed, stopped, and up again.

One machine for the whole file; each test finds both services running and leaves them so.
"""

import json
import re

import pytest

from shared.errors import ExitCode
from tests.conftest import ROOT
from tests.support.hosts.machine import Machine, booted, debian_tree, needs, overlay, run_unbooted, wait_until, wheels
from tests.support.hosts.sources import copied_by_install

pytestmark = [pytest.mark.root, pytest.mark.timeout(1200)]

EDGE, TRAINER = "edge-agent", "cloud-trainer"
WATCHDOG_SECONDS = 10
SOURCES = ("deploy", "requirements.lock", *copied_by_install())
SECRETS = "/etc/isthmus/secrets"
TRUSTED = f"""
[server]
listen = "127.0.0.1:50051"
[tls]
certificate = "{SECRETS}/trainer.pem"
key = "{SECRETS}/trainer.key"
ca = "{SECRETS}/ca.pem"
[auth]
tokens = "{SECRETS}/tokens.toml"
"""
KNOWN = f"""
[trainer]
address = "localhost:50051"
token_file = "{SECRETS}/pi.token"
[tls]
certificate = "{SECRETS}/pi.pem"
key = "{SECRETS}/pi.key"
ca = "{SECRETS}/ca.pem"
"""
SLOW_RUN = f"""
{KNOWN}
[training]
epochs = 100000
[deployment]
staleness = 2
[checkpoints]
every_seconds = 1
[metrics]
listen = "127.0.0.1:9464"
"""
SHORT_RUN = f"""
{KNOWN}
[training]
max_steps = 20
"""


def make_secrets(root):
    """Certificates and a token, closed to all but root and the services' group."""
    commands = [
        f"cloud-trainer certs {SECRETS} --host localhost --client pi",
        f"cloud-trainer token pi --file {SECRETS}/tokens.toml --out {SECRETS}/pi.token",
        f"rm {SECRETS}/ca.key",
        f"chgrp -R isthmus {SECRETS} && chmod 750 {SECRETS} && chmod 640 {SECRETS}/*",
    ]
    script = " && ".join(commands)
    run_unbooted(root, ["/bin/sh", "-ec", script], {"PATH": "/opt/isthmus/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, {})


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    needs("systemd-nspawn", "nsenter")
    tree, packages = debian_tree(), wheels()
    with overlay(tree, tmp_path_factory.mktemp("machine")) as root:
        binds = {packages: "/wheels"} | {ROOT / name: f"/source/{name}" for name in SOURCES}
        environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_ROOT_USER_ACTION": "ignore"}
        for name in (TRAINER, EDGE):
            script = ["/bin/sh", "/source/deploy/systemd/install.sh", name]
            assert f"systemctl enable --now {name}" in run_unbooted(root, script, environment, binds)
        assert "[deployment]" in (root / "etc/isthmus/edge-agent.toml").read_text(), "an example to begin with"
        (root / "etc/isthmus/edge-agent.toml").write_text(SLOW_RUN)
        make_secrets(root)
        (root / "etc/isthmus/cloud-trainer.toml").write_text(TRUSTED)
        drop_in = root / "etc/systemd/system/edge-agent.service.d/quick.conf"
        drop_in.parent.mkdir()
        drop_in.write_text(f"[Service]\nWatchdogSec={WATCHDOG_SECONDS}\nRestartSec=0.2\n")
        with booted(root, "isthmus") as machine:
            machine.run("systemctl", "enable", EDGE, TRAINER)  # what nothing wants, systemd forgets when it has stopped
            machine.run("systemctl", "start", TRAINER)
            yield machine


@pytest.fixture
def running(machine: Machine):
    """Both services run, for the test and after it."""
    machine.run("systemctl", "restart", EDGE)  # returns when it is ready
    yield machine
    (machine.root / "etc/isthmus/edge-agent.toml").write_text(SLOW_RUN)
    assert machine.show(TRAINER, "ActiveState") == {"ActiveState": "active"}, "the trainer outlives all of it"


LOSSES = 'isthmus_link_losses_total{worker="trainer"}'


def metric(machine, name):
    """A metric of the agent, by its name with its labels."""
    program = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
    text = machine.run("/opt/isthmus/bin/python", "-c", program)
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])


def restarts(machine, name=EDGE):
    return int(machine.show(name, "NRestarts")["NRestarts"])


def back_after(machine, event, name=EDGE):
    """Do it and see the service come back, ready; returns what the journal says of it since."""
    before = restarts(machine, name)
    cursor = machine.run("journalctl", "-n0", "--show-cursor").split()[-1]
    event()
    wait_until(
        lambda: restarts(machine, name) > before and machine.show(name, "ActiveState")["ActiveState"] == "active",
        f"{name} is back",
    )
    return machine.run("journalctl", "-u", name, f"--after-cursor={cursor}", "-o", "cat")


def entries(journal, event):
    """Return the agent's log entries of an event."""
    logged = [json.loads(line) for line in journal.splitlines() if line.startswith("{")]
    return [entry for entry in logged if entry["event"] == event]


def session_with_a_checkpoint(machine):
    """The id of the run, once both sides have a checkpoint of it."""
    pid = machine.show(EDGE, "MainPID")["MainPID"]

    def shared():
        return entries(machine.run("journalctl", f"_PID={pid}", "-o", "cat"), "checkpoint at every worker")

    wait_until(lambda: bool(shared()), "a checkpoint")
    return shared()[-1]["run"]


def resumed(journal):
    """The runs that were resumed, by what the agent said."""
    return [entry["run"] for entry in entries(journal, "session resumed")]


def test_ready_is_an_open_session(running):
    assert metric(running, "isthmus_planned_steps") > 0
    assert running.show(EDGE, "ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}


def test_the_status_shows_step_rate_and_blocks(running):
    def status():
        return running.show(EDGE, "StatusText")["StatusText"]

    wait_until(
        lambda: bool(re.fullmatch(r"step [1-9]\d* of \d+, \d+ samples/s, \d+ blocks? here, loss \S+", status())),
        "a step",
    )
    assert re.search(r"Status: \"step \d+ of", running.run("systemctl", "status", EDGE))
    assert "listening on" in running.show(TRAINER, "StatusText")["StatusText"]


def test_neither_runs_as_root_nor_as_the_other(running):
    users = [
        running.run("stat", "-c", "%u", f"/proc/{running.show(name, 'MainPID')['MainPID']}") for name in (EDGE, TRAINER)
    ]
    assert len({*users, "0\n"}) == 3


def test_the_agent_cannot_write_where_it_has_no_business(running):
    pid = running.show(EDGE, "MainPID")["MainPID"]
    inside = ["nsenter", "-t", pid, "-m", "--", "sh", "-c"]
    assert running.run(*inside, "touch /etc/isthmus/x /opt/isthmus/x /usr/x 2>&1 || true").count("Read-only") == 3
    assert running.run(*inside, "touch $(readlink -f /var/lib/edge-agent)/x && echo yes") == "yes\n"


def test_its_session_goes_on_after_sigkill(running):
    session = session_with_a_checkpoint(running)
    said = back_after(running, lambda: running.run("systemctl", "kill", "-s", "KILL", EDGE))
    assert resumed(said) == [session]


def test_the_watchdog_ends_an_agent_that_stands_still_and_its_session_goes_on(running):
    session = session_with_a_checkpoint(running)
    said = back_after(running, lambda: running.run("systemctl", "kill", "-s", "STOP", EDGE))
    assert "Watchdog timeout" in said
    assert resumed(said) == [session]


def test_an_agent_outlives_a_trainer_that_is_killed(running):
    session_with_a_checkpoint(running)
    before, lost = running.show(EDGE, "MainPID"), metric(running, LOSSES)
    back_after(running, lambda: running.run("systemctl", "kill", "-s", "KILL", TRAINER), TRAINER)
    wait_until(lambda: metric(running, LOSSES) > lost, "the agent has lost its trainer")
    steps = metric(running, "isthmus_steps_total")
    wait_until(lambda: metric(running, "isthmus_steps_total") > steps, "a step")
    assert running.show(EDGE, "MainPID") == before


def test_stop_is_no_failure(running):
    running.run("systemctl", "stop", EDGE)
    assert running.show(EDGE, "ActiveState", "Result", "ExecMainStatus") == {
        "ActiveState": "inactive",
        "Result": "success",
        "ExecMainStatus": str(int(ExitCode.TERMINATED)),
    }
    wait_until(lambda: running.show(TRAINER, "StatusText")["StatusText"].startswith("0 sessions"), "a farewell")


def test_a_wrong_configuration_is_not_tried_again(running):
    (running.root / "etc/isthmus/edge-agent.toml").write_text("[deployment]\ncut = 0\n")
    running.run("systemctl", "restart", EDGE, check=False)
    assert running.show(EDGE, "ActiveState", "ExecMainStatus", "NRestarts") == {
        "ActiveState": "failed",
        "ExecMainStatus": str(int(ExitCode.CONFIG)),
        "NRestarts": "0",
    }
    assert "deployment.cut" in running.run("journalctl", "-u", EDGE, "-n", "20", "-o", "cat")


def test_a_run_that_is_done_leaves_its_results_to_root_alone(running):
    """With settings that decide another result, a run that is not finished is given up by a command, and by no restart."""
    session_with_a_checkpoint(running)
    (running.root / "etc/isthmus/edge-agent.toml").write_text(SHORT_RUN)
    running.run("systemctl", "restart", EDGE, check=False)
    assert running.show(EDGE, "ActiveState", "ExecMainStatus", "NRestarts") == {
        "ActiveState": "failed",
        "ExecMainStatus": str(int(ExitCode.CONFIG)),
        "NRestarts": "0",
    }
    (command,) = re.findall(r"`(edge-agent forget [^`]*)`", running.show(EDGE, "StatusText")["StatusText"])
    assert command in running.run("systemctl", "status", EDGE, check=False)
    running.run(*f"/opt/isthmus/bin/{command}".split())
    running.run("systemctl", "restart", EDGE)
    wait_until(lambda: running.show(EDGE, "ActiveState")["ActiveState"] == "inactive", "the end of the run")
    assert running.show(EDGE, "Result") == {"Result": "success"}
    assert json.loads(running.run("cat", "/var/lib/edge-agent/run/summary.json"))["steps"] == 20
    assert running.run("stat", "-c", "%a", "/var/lib/private") == "700\n"
