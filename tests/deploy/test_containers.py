"""The images as they are run: built on a base of our own, healthy soon, not root, and a training between two containers."""

import json
import os
import shutil
import time
import urllib.request
from contextlib import ExitStack

import pytest
import yaml

from shared.errors import ExitCode
from tests.conftest import ROOT
from tests.support.hosts.containers import BASE, Podman
from tests.support.hosts.machine import needs

pytestmark = [pytest.mark.root, pytest.mark.timeout(1200)]

HEALTHY_WITHIN = 4.0
"""Ratio to the time in which the same image only imports a trainer's modules: the machine has other work, too."""
NETWORK = f"isthmus-test-{os.getpid()}"
INSECURE = "--env=CLOUD_TRAINER_SERVER__INSECURE=true"
"""The tests' networks are their own."""
READ_ONLY = ["--read-only", "--read-only-tmpfs=true", "--cap-drop=all", "--security-opt=no-new-privileges"]


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    needs("podman", "buildah", "runc")
    return Podman(tmp_path_factory.mktemp("containers"))


@pytest.fixture(scope="module")
def images(podman):
    return {target: podman.build(target) for target in ("trainer", "agent")}


@pytest.fixture(scope="module")
def network(podman):
    podman("network", "create", NETWORK)
    yield NETWORK
    podman("network", "rm", NETWORK)


def healthy(podman, name):
    return podman.code("healthcheck", "run", name) == 0


def wait_until_healthy(podman, name):
    """Seconds that it took."""
    started = time.monotonic()
    while not healthy(podman, name):
        assert time.monotonic() - started < 60, podman("logs", name)
        time.sleep(0.1)
    return time.monotonic() - started


@pytest.fixture
def trainer(podman, images, network):
    """A trainer that serves, with no more rights than it needs."""
    with podman.running(
        "isthmus-trainer-test", f"--network={network}", INSECURE, *READ_ONLY, images["trainer"]
    ) as name:
        wait_until_healthy(podman, name)
        yield name


def inspected(podman, image):
    return json.loads(podman("image", "inspect", image))[0]


def test_the_images_are_not_root_and_share_all_but_a_little(podman, images, record_property):
    layers = []
    for target, image in images.items():
        facts = inspected(podman, image)
        assert facts["User"] == "10001:10001"
        layers.append(facts["RootFS"]["Layers"])
        record_property(target, facts["Size"])
        print(f"{target}: {facts['Size'] / 1e6:.0f} MB")
    shared = [one for one, other in zip(*layers, strict=True) if one == other]
    assert len(shared) >= len(layers[0]) - 1, "what the two do not share is at most their last layer"
    assert inspected(podman, images["trainer"])["Healthcheck"]["Test"][-1] == "127.0.0.1:50052"


def test_a_trainer_is_healthy_soon(podman, images):
    started = time.monotonic()
    importing = ["--entrypoint=/opt/isthmus/bin/python", images["trainer"], "-c", "import cloud_trainer.server"]
    podman("run", "--rm", *importing)
    imported_seconds, started = time.monotonic() - started, time.monotonic()
    with podman.running("isthmus-trainer-soon", INSECURE, images["trainer"]) as name:
        wait_until_healthy(podman, name)
        seconds = time.monotonic() - started
        print(f"healthy after {seconds:.1f} s; importing took {imported_seconds:.1f} s")
    assert seconds < HEALTHY_WITHIN * imported_seconds


def test_a_trainer_that_does_not_serve_is_not_healthy(podman, images):
    answering_elsewhere = "--env=CLOUD_TRAINER_SERVER__HEALTH_LISTEN=127.0.0.1:50053"
    with podman.running("isthmus-trainer-elsewhere", INSECURE, answering_elsewhere, images["trainer"]) as name:
        deadline = time.monotonic() + 60
        while "listening" not in podman("logs", name):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not healthy(podman, name)


def test_a_training_between_two_containers_finishes(podman, images, network, trainer, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    os.chown(results, 10001, 10001)
    flags = [f"trainer.address={trainer}:50051", "training.max_steps=50", "deployment.staleness=2", "compute.threads=1"]
    said = podman(
        "run", "--rm", f"--network={network}", *READ_ONLY, f"--volume={results}:/results", images["agent"],
        "run", "--output=/results", *(f"--set={flag}" for flag in flags),
    )  # fmt: skip
    summary = json.loads((results / "summary.json").read_text())
    assert summary["steps"] == 50, said
    assert (results / "model.safetensors").exists()
    assert healthy(podman, trainer)


def test_a_training_with_processes_that_load_finishes(podman, images, network, trainer):
    flags = [f"trainer.address={trainer}:50051", "training.max_steps=5", "data.workers=1", "compute.threads=1"]
    podman("run", "--rm", f"--network={network}", images["agent"], "run", *(f"--set={flag}" for flag in flags))


def test_processes_that_load_without_shared_memory_are_refused_in_a_sentence(podman, images, network, trainer):
    flags = [f"trainer.address={trainer}:50051", "training.max_steps=5", "data.workers=2", "compute.threads=1"]
    short = [f"--network={network}", "--shm-size=16k", images["agent"], "run", *(f"--set={flag}" for flag in flags)]
    with podman.running("isthmus-agent-short", *short) as name:
        podman("wait", name)
        assert podman("inspect", "--format={{.State.ExitCode}}", name).split() == [str(int(ExitCode.DATA))]
        assert "--shm-size" in podman("logs", name)


def test_sigterm_ends_a_trainer_with_zero(podman, trainer):
    podman("stop", "--time=30", trainer)
    assert podman("inspect", "--format={{.State.ExitCode}}", trainer).split() == ["0"]


def test_sigterm_ends_an_agent_in_the_middle_of_its_run(podman, images, network, trainer):
    flags = [f"trainer.address={trainer}:50051", "training.epochs=100000", "compute.threads=1"]
    arguments = [f"--network={network}", images["agent"], "run", *(f"--set={flag}" for flag in flags)]
    with podman.running("isthmus-agent-test", *arguments) as name:
        deadline = time.monotonic() + 60
        while "session opened" not in podman("logs", name):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        podman("stop", "--time=30", name)
        assert podman("inspect", "--format={{.State.ExitCode}}", name).split() == [str(int(ExitCode.TERMINATED))]
        assert "stopped by SIGTERM" in podman("logs", name)
    assert healthy(podman, trainer)


def as_composed(name):
    """Return the options of podman run for a service in compose.yml."""
    service = yaml.safe_load((ROOT / "deploy/docker/compose.yml").read_text())["services"][name]
    options = [f"--network-alias={name}", "--init=false"]  # podman's own init is a package of its own
    options += [f"--env={key}={value}" for key, value in service.get("environment", {}).items()]
    if "shm_size" in service:
        options.append(f"--shm-size={service['shm_size'].removesuffix('b')}")
    for volume in service.get("volumes", []):
        here, there, mode = volume.split(":")
        options.append(f"--volume={(ROOT / 'deploy/docker' / here).resolve()}:{there}:{mode}")
    return options, service.get("command", [])


def test_the_agent_that_is_composed_has_room_for_what_processes_load(podman, images):
    options, _ = as_composed("agent")
    shown = podman("run", "--rm", *options, "--entrypoint=/bin/df", images["agent"], "--output=size", "/dev/shm")
    assert int(shown.split()[-1]) == 1024**2


def test_prometheus_scrapes_both_as_compose_puts_them_together(podman, images, network, unused_tcp_port):
    # No registry can be asked for Prometheus' own image: Debian's binary stands where that has its own.
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("Prometheus is not installed")
    watcher, _ = as_composed("prometheus")
    watcher += [f"--volume={binary}:/bin/prometheus:ro", f"--publish=127.0.0.1:{unused_tcp_port}:9090", BASE]
    watcher += ["/bin/prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/tmp/data"]
    with ExitStack() as stack:
        for name in ("trainer", "agent"):
            options, command = as_composed(name)
            arguments = [f"--network={network}", *options, images[name], *command]
            container = stack.enter_context(podman.running(f"isthmus-compose-{name}", *arguments))
            if name == "trainer":
                wait_until_healthy(podman, container)  # as depends_on has it
        stack.enter_context(podman.running("isthmus-compose-prometheus", f"--network={network}", *watcher))
        query = f"http://127.0.0.1:{unused_tcp_port}/api/v1/query?query=isthmus_steps_total"
        deadline, trained = time.monotonic() + 90, set()
        while trained != {("isthmus-edge", "agent:9464"), ("isthmus-trainer", "trainer:9465")}:
            assert time.monotonic() < deadline, f"steps are seen of {trained}"
            time.sleep(0.5)
            try:
                with urllib.request.urlopen(query, timeout=5) as response:
                    answer = json.load(response)["data"]["result"]
            except OSError:
                continue
            seen = [(series["metric"], float(series["value"][1])) for series in answer]
            trained = {(labels["job"], labels["instance"]) for labels, steps in seen if steps > 0}
