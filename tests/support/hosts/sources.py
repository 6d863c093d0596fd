"""Sources in a checkout that the scripts of deploy/ install."""

import re

from tests.support.running import ROOT

INSTALL = ROOT / "deploy" / "systemd" / "install.sh"
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"


def copied_by_install() -> tuple[str, ...]:
    """The files and folders that install.sh copies and builds the package from."""
    (copied,) = re.findall(r"cp -R (.*) \"\$COPY\"", INSTALL.read_text())
    return tuple(copied.split())


def copied_into_images() -> tuple[str, ...]:
    """List the sources that an image is built from; it takes requirements.lock by itself before."""
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    return tuple(name for line in lines for name in line.split() if name != "requirements.lock")
