"""The files for containers: valid by themselves, and in agreement with the rest of deploy/."""

import subprocess

import yaml

from cloud_trainer.config import TrainerConfig
from isthmus import EdgeConfig
from shared.config import is_loopback, load_config
from tests.conftest import ROOT
from tests.support.running import SCRIPTS

HERE = ROOT / "deploy" / "docker"
COMPOSE = yaml.safe_load((HERE / "compose.yml").read_text())["services"]


def stage(name):
    """Return the lines of one stage of the Dockerfile."""
    text = (HERE / "Dockerfile").read_text()
    return text.partition(f" AS {name}\n")[2].partition("\nFROM ")[0].splitlines()


def environment(name):
    lines = [line.removeprefix("ENV ").split() for line in stage(name) if line.startswith("ENV ")]
    return dict(pair.split("=", 1) for line in lines for pair in line)


def ports(address):
    return address.rpartition(":")[2]


def test_the_dockerfile_is_as_hadolint_wants_it():
    done = subprocess.run([SCRIPTS / "hadolint", HERE / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_images_set_is_configuration_that_there_is():
    trainer = load_config(TrainerConfig, None, [], environ=environment("trainer"))
    agent = load_config(EdgeConfig, HERE / "edge-agent.toml", [], environ=environment("agent"))
    exposed = {name: [line for line in stage(name) if line.startswith("EXPOSE")] for name in ("trainer", "agent")}
    assert exposed["trainer"] == [f"EXPOSE {ports(trainer.server.listen)} {ports(trainer.metrics.listen)}"]
    assert exposed["agent"] == [f"EXPOSE {ports(agent.metrics.listen)}"]


def test_what_compose_sets_is_configuration_that_there_is():
    agent = load_config(EdgeConfig, HERE / "edge-agent.toml", [], environ=COMPOSE["agent"]["environment"])
    trainer = load_config(TrainerConfig, None, [], environ=COMPOSE["trainer"]["environment"])
    assert agent.trainer.address == "trainer:50051"
    assert trainer.compute.threads == agent.compute.threads == 1


def test_nobody_outside_its_container_reads_the_metrics_of_an_image_unless_it_is_told_so():
    trainer = load_config(TrainerConfig, None, [], environ=environment("trainer"))
    agent = load_config(EdgeConfig, HERE / "edge-agent.toml", [], environ=environment("agent"))
    assert all(is_loopback(listen) for listen in (trainer.metrics.listen, agent.metrics.listen))


def test_an_agent_that_is_started_again_goes_on_where_it_was():
    assert 'CMD ["run", "--resume"]' in stage("agent")
    assert COMPOSE["agent"]["command"][:2] == ["run", "--resume"]


def test_prometheus_scrapes_what_compose_lets_it_reach():
    for service, file, prefix in (("agent", "edges", "EDGE_AGENT"), ("trainer", "trainers", "CLOUD_TRAINER")):
        served = COMPOSE[service]["environment"][f"{prefix}_METRICS__LISTEN"]
        assert served.startswith("0.0.0.0:")
        (group,) = yaml.safe_load((HERE / "targets" / f"{file}.yml").read_text())
        assert group["targets"] == [f"{service}:{ports(served)}"]


def test_everything_that_is_mounted_is_there_and_where_its_reader_looks():
    mounts = {}
    for service in COMPOSE.values():
        for volume in service.get("volumes", []):
            here, there, mode = volume.split(":")
            assert (HERE / here).exists(), here
            assert mode == "ro"
            mounts[there] = (HERE / here).resolve()
    (provider,) = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/isthmus.yml").read_text())["providers"]
    assert mounts[provider["options"]["path"]] == ROOT / "deploy" / "grafana" / "dashboards"
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/edge.json"
    assert str(ROOT / "deploy/docker/edge-agent.toml") == str(mounts[COMPOSE["agent"]["command"][-1]])


def test_both_images_are_built_from_the_one_dockerfile():
    for name in ("trainer", "agent"):
        build = COMPOSE[name]["build"]
        assert (HERE / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == HERE / "Dockerfile"
        assert build["target"] == name
