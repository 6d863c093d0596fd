"""Every kind of placement that an agent and up to three trainers can have, for models of four blocks, as flags of an agent."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cloud_trainer.server import TrainerServer
from shared.placement import Placement, document_of
from tests.support.running import running_trainer

TRAINERS = ("near", "far", "cloud")
"""The one that is nearest to the device first."""
PEERS_ALLOWED = 'peers.allowed=["127.0.0.1:*"]'
ACCEPTS_INPUTS = "server.accept_inputs=true"
BATCH_SIZE = 64
INVERTED = "inverted"

RANGES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "two workers": {"edge": ["0:2"], "near": ["2:"]},
    "labels stay": {"edge": ["0:1", "3:"], "near": ["1:3"]},
    INVERTED: {"near": ["0:2"], "edge": ["2:"]},
    "chain of three": {"edge": ["0:1"], "near": ["1:3"], "far": ["3:"]},
    "chain of four": {"edge": ["0:1"], "near": ["1:2"], "far": ["2:3"], "cloud": ["3:"]},
    "chain, and labels stay": {"edge": ["0:1", "3:"], "near": ["1:2"], "far": ["2:3"]},
    "there and back": {"edge": ["0:1"], "near": ["1:2", "3:"], "far": ["2:3"]},
}
"""Placements in which every block has one worker; the lower half of the grid is its trainers'."""


def _tile(worker: str, blocks: tuple[int, int], samples: tuple[int, int] = (0, BATCH_SIZE)) -> dict[str, Any]:
    return {"worker": worker, "blocks": list(blocks), "samples": list(samples)}


def _document(workers: Sequence[str], tiles: Sequence[dict[str, Any]], owners: Mapping[int, str]) -> dict[str, Any]:
    named = {str(block): owner for block, owner in owners.items()}
    return {"schema": "isthmus.placement/v1", "workers": list(workers), "tiles": list(tiles), "owners": named}


SHARED: Mapping[str, dict[str, Any]] = {
    "samples divided": _document(
        ("edge", "near", "far"),
        [_tile("edge", (0, 2), (0, 16)), _tile("near", (0, 2), (16, 64)), _tile("far", (2, 4))],
        {0: "near", 1: "near"},
    ),
    "owned by the device": _document(
        ("edge", "near"),
        [_tile("edge", (0, 1)), _tile("edge", (1, 4), (0, 24)), _tile("near", (1, 4), (24, 64))],
        {1: "edge", 2: "edge", 3: "edge"},
    ),
    "owners that run nothing": _document(
        ("edge", "near", "far", "cloud"),
        [_tile("edge", (0, 4), (0, 32)), _tile("near", (0, 4), (32, 64))],
        {0: "far", 1: "far", 2: "cloud", 3: "cloud"},
    ),
    "three tiers": _document(
        ("edge", "near", "far"),
        [
            _tile("far", (0, 2), (0, 24)),
            _tile("edge", (0, 1), (24, 40)),
            _tile("near", (0, 1), (40, 64)),
            _tile("near", (1, 2), (24, 64)),
            _tile("near", (2, 4)),
        ],
        {0: "near", 1: "near"},
    ),
}
"""Placements in which several workers share a block, as documents."""


def flags_of(kind: str, addresses: Mapping[str, str], folder: Path) -> list[str]:
    """Return the flags that configure an agent for a kind of placement.

    addresses: of the trainers, by name. folder: where a document is written that no range of blocks can say.
    """
    if kind in SHARED:
        return flags_of_document(SHARED[kind], addresses, folder)
    ranges = RANGES[kind]
    written = [f"placement.{worker}={json.dumps(blocks)}" for worker, blocks in ranges.items()]
    return [trainers_flag(addresses, list(ranges)), *written]


def flags_of_document(document: dict[str, Any], addresses: Mapping[str, str], folder: Path) -> list[str]:
    """The same for a placement that a file says."""
    file = folder / "placement.json"
    file.write_text(json.dumps(document))
    return [trainers_flag(addresses, document["workers"]), f"placement.file={file}"]


def flags_of_placement(placement: Placement, addresses: Mapping[str, str], folder: Path) -> list[str]:
    """The same for any placement of batches of its own size."""
    flags = flags_of_document(document_of(placement), addresses, folder)
    return [*flags, f"data.batch_size={placement.batch_size}", f"deployment.staleness={placement.staleness}"]


def trainers_flag(addresses: Mapping[str, str], workers: Sequence[str]) -> str:
    """The trainers of a configuration, those alone that have a part."""
    named = [f'{{name="{name}", address="{addresses[name]}"}}' for name in TRAINERS if name in workers]
    return f"trainers=[{', '.join(named)}]"


def permitted(kind: str, model: str) -> list[str]:
    """The permission that samples need where a trainer has the first blocks, or stands behind nothing but an embedding."""
    tiles = SHARED[kind]["tiles"] if kind in SHARED else []
    shown = {tile["worker"] for tile in tiles if tile["blocks"][0] == 0}
    if kind == INVERTED:
        shown.add("near")
    if model == "lstm":  # the numbers behind an embedding are as good as its tokens
        shown |= {"near", "far"}
    workers = SHARED[kind]["workers"] if kind in SHARED else RANGES[kind]
    names = sorted(name for name in shown if name in workers and name != "edge")
    owners = sorted(set(SHARED[kind]["owners"].values()) - {"edge"}) if kind in SHARED else []
    keys = {"inputs_to": names, "gradients_to": owners}
    return [f"privacy.{key}={json.dumps(named)}" for key, named in keys.items() if named]


@asynccontextmanager
async def running_trainers(
    checkpoints: Path | None = None, *, accept_inputs: bool = True, device: str = "cpu"
) -> AsyncIterator[dict[str, TrainerServer]]:
    """All trainers in this process and on this loop, by name; they may dial each other.

    checkpoints: where each keeps those of its sessions, in a folder by its name; None keeps none. accept_inputs: whether they
    take samples. device: on which they compute.
    """
    async with AsyncExitStack() as servers:
        found: dict[str, TrainerServer] = {}
        flags = [PEERS_ALLOWED, f"compute.device={device}", *([ACCEPTS_INPUTS] if accept_inputs else [])]
        for name in TRAINERS:
            kept = [] if checkpoints is None else [f"checkpoints.location={checkpoints / name}"]
            found[name] = await servers.enter_async_context(running_trainer(*flags, *kept))
        yield found


def addresses_of(servers: Mapping[str, TrainerServer]) -> dict[str, str]:
    """Return the addresses of the servers."""
    return {name: server.address for name, server in servers.items()}
