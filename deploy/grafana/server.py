"""A Prometheus of this machine with our configuration, which scrapes every second."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

CONFIGURATION = Path(__file__).resolve().parents[1] / "prometheus"
SCRAPE_SECONDS = 1


@contextmanager
def running_prometheus(folder: Path, port: int, targets: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Its address; `folder`, which it makes, holds all that is its own, and `targets` are addresses by file of targets."""
    shutil.copytree(CONFIGURATION, folder)
    config = folder / "prometheus.yml"
    faster = config.read_text().replace("scrape_interval: 5s", f"scrape_interval: {SCRAPE_SECONDS}s")
    config.write_text(faster.replace("evaluation_interval: 15s", f"evaluation_interval: {SCRAPE_SECONDS}s"))
    for name, addresses in targets.items():
        (folder / "targets" / f"{name}.yml").write_text(json.dumps([{"targets": list(addresses)}]))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
