"""Our images, built by buildah on a base that is made here, and run by podman. Needs root, but no registry."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hosts.machine import SUITE, debian_tree, wheels
from tests.support.running import ROOT

BASE = f"localhost/isthmus-test-base:{SUITE}"
SETTINGS = """
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=2048:2048"]
"""
"""crun, the default, asks more of the kernel's cgroups than every machine gives; the limits are those of any machine."""


class Podman:
    """Podman and buildah as the tests use them."""

    def __init__(self, folder: Path) -> None:
        settings = folder / "containers.conf"
        settings.write_text(SETTINGS)
        self._environment = {**os.environ, "CONTAINERS_CONF": str(settings)}

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """Run podman; returns what it printed, with what the container printed on standard error."""
        return self._run("podman", *arguments, check=check).stdout

    def code(self, *arguments: str) -> int:
        """Run podman; returns its exit code."""
        return self._run("podman", *arguments, check=False).returncode

    def build(self, target: str) -> str:
        """Build one target of our Dockerfile; returns the name of the image."""
        if self.code("image", "exists", BASE):
            archive = ["tar", "-C", str(debian_tree()), "-c", "."]
            with subprocess.Popen(archive, stdout=subprocess.PIPE) as tar:
                command = ["podman", "import", "-q", "-", BASE]
                subprocess.run(command, stdin=tar.stdout, env=self._environment, check=True, stdout=subprocess.DEVNULL)
        image = f"localhost/isthmus-test-{target}"
        mirror = {"BASE": BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        arguments = [f"--build-arg={name}={value}" for name, value in mirror.items()]
        self._run(
            "buildah", "build", "--quiet", "--isolation=chroot", "--layers", "--format=docker", *arguments,
            f"--volume={wheels()}:/wheels:ro", "--file=deploy/docker/Dockerfile", f"--target={target}", f"--tag={image}", "."
        )  # fmt: skip
        return image

    @contextmanager
    def running(self, name: str, *arguments: str) -> Iterator[str]:
        """A container in the background, removed at the end with what it kept; one that was left over goes first."""
        self("run", "--detach", "--replace", f"--name={name}", *arguments)
        try:
            yield name
        finally:
            # Ample time to end by itself: podman fails to remove a container that is killed just while it ends.
            self("rm", "--force", "--volumes", "--time=30", name)

    def _run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout
        return done
