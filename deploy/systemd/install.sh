#!/bin/sh
# Installs the agent or the trainer as a systemd service, from a checkout: deploy/systemd/install.sh edge-agent|cloud-trainer
#
# Everything that runs is in /opt/isthmus, a virtual environment of its own; packages with your models go in there too. The
# configuration is /etc/isthmus/NAME.toml, which is written only where there is none. The service is not started.
set -eu
PYTHON=${PYTHON:-python3}
HOME_OF_ALL=/opt/isthmus
NAME=${1:-}
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)

case $NAME in
    edge-agent | cloud-trainer) ;;
    *)
        echo "usage: $0 edge-agent|cloud-trainer" >&2
        exit 2
        ;;
esac
if [ "$(id -u)" != 0 ]; then
    echo "$0: must be run as root: it writes to $HOME_OF_ALL, /etc/isthmus and /etc/systemd/system" >&2
    exit 1
fi

[ -x "$HOME_OF_ALL/bin/python" ] || "$PYTHON" -m venv "$HOME_OF_ALL"
# A torch that is there already stays: on a GPU or an ARM board the owner has chosen it.
if ! "$HOME_OF_ALL/bin/python" -c "import torch" 2>/dev/null; then
    "$HOME_OF_ALL/bin/pip" install --quiet --disable-pip-version-check -r "$SOURCE/requirements.lock"
fi
COPY=$(mktemp -d) # building leaves files beside the sources
trap 'rm -rf "$COPY"' EXIT
(cd "$SOURCE" && cp -R pyproject.toml README.md LICENSE isthmus.py isthmus_entry_points.py shared edge_agent cloud_trainer "$COPY")
"$HOME_OF_ALL/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$COPY"
"$HOME_OF_ALL/bin/pip" install --quiet --disable-pip-version-check "$COPY"

# The services' users exist only while they run; the group is what files can be given to.
getent group isthmus >/dev/null || groupadd --system isthmus
install -d -m 755 /etc/isthmus /etc/default
if [ ! -e "/etc/isthmus/$NAME.toml" ]; then
    "$HOME_OF_ALL/bin/$NAME" config --example >"/etc/isthmus/$NAME.toml"
fi
[ -e "/etc/default/$NAME" ] || install -m 600 "$SOURCE/deploy/systemd/$NAME.default" "/etc/default/$NAME"
install -m 644 "$SOURCE/deploy/systemd/$NAME.service" "/etc/systemd/system/$NAME.service"
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
echo "installed. Edit /etc/isthmus/$NAME.toml, then: systemctl enable --now $NAME"
