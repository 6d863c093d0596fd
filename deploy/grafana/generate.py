"""Writes the dashboards: `python -m deploy.grafana.generate`, with --check to find out whether those in the tree are stale."""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.edge import edge_dashboard
from deploy.grafana.trainer import trainer_dashboard

FOLDER = Path(__file__).resolve().parent / "dashboards"


def dashboards() -> dict[Path, str]:
    """Return the text of each file."""
    boards = {"edge.json": edge_dashboard(), "trainer.json": trainer_dashboard()}
    return {FOLDER / name: json.dumps(board, cls=JSONEncoder, indent=1) + "\n" for name, board in boards.items()}


def main() -> None:
    """Write, or with --check only compare."""
    for path, text in dashboards().items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path} is stale: run `make dashboards`")


if __name__ == "__main__":
    main()
