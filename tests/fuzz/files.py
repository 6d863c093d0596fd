"""Every kind of file that is read, how it is damaged, and what reads it; an IsthmusError is all that may come of it."""

import asyncio
import json
import lzma
import shutil
import struct
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cloud_trainer.config import TrainerConfig
from cloud_trainer.sessions.session_store import Quota, SessionStore
from edge_agent.data import fashion_mnist
from edge_agent.observability.timeline import load as load_timeline
from edge_agent.observability.timeline_window import choose_window, summary
from edge_agent.planning import load_profile, load_trace
from edge_agent.planning.prediction import (
    complete,
    known_devices,
    load_table,
    table_to_json,
)
from edge_agent.planning.schedules import STRATEGIES, load_layers
from edge_agent.profiling.profile_parts import PartFile
from edge_agent.profiling.workers.measured_parts import WorkerMeasurements
from edge_agent.sessions.stored_session import stored_sessions
from isthmus import EdgeConfig
from shared.checkpoint import CheckpointName, CheckpointStore, Increment, Increments, LocalFiles, seal
from shared.checkpoint.increments import described
from shared.checkpoint.store import FORMAT
from shared.config import load_config
from shared.errors import IsthmusError, StorageError
from shared.model.build import build_checked_chain
from shared.model.spec import TensorSpec
from shared.placement import BlockFacts, ModelFacts, Permissions, StepPlan, check, load_placement
from shared.runtime.checkpoint_states import load_states
from shared.training import block_state, state_file
from shared.training.held_blocks import HeldBlocks
from shared.training.held_state import KEPT, copy_state, put_back, states_in
from shared.training.kept_features import KeptFeatures
from shared.training.recipe import Recipe
from shared.training.state_file import serialize
from shared.training.step_log import check_steps
from shared.transport.auth.scopes import Scope
from shared.transport.auth.tokens import make_token, read_tokens
from tests.fuzz.damage import absurd_texts, damaged, json_files, json_values, reworded
from tests.fuzz.good_files import (
    CSV,
    EDGE,
    GHENT,
    IMAGES,
    LAYERS,
    LISTS_5G,
    MAHIMAHI,
    PARTS,
    PLACED,
    PLACEMENT,
    PROFILE,
    RECORD,
    SESSION_ID,
    STEPS,
    TIERS,
    TIMELINE,
    TRAINER,
)
from tests.support.latency import costs_of, table_of
from tests.support.wire import BATCH, FEATURES, open_request

NAME = CheckpointName(1, 7)


@dataclass(frozen=True)
class Kind:
    """A kind of file. read: given an empty folder and a file's bytes, puts it there and reads it."""

    files: st.SearchStrategy[bytes]
    read: Callable[[Path, bytes], object]


def _a_file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    def put_and_read(folder: Path, data: bytes) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return put_and_read


def _tensor_files(good: bytes) -> st.SearchStrategy[bytes]:
    """safetensors files: damaged anywhere, or with another header in front of the same data."""
    header_bytes = struct.unpack("<Q", good[:8])[0]
    header, data = json.loads(good[8 : 8 + header_bytes]), good[8 + header_bytes :]

    def under(length_and_header: tuple[int | None, bytes]) -> bytes:
        length, text = length_and_header
        return struct.pack("<Q", len(text) if length is None else length) + text + data

    lengths = st.none() | st.sampled_from([0, 1, 2**31, 2**40, 2**63, 2**64 - 1])
    return damaged(good) | st.tuples(lengths, json_files(header)).map(under)


def _sealed(good: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Documents that say something else under a right checksum, and ones whose checksum is wrong."""
    return reworded(good).map(seal) | json_values.map(seal) | damaged(seal(good)) | json_files(json.loads(seal(good)))


_KEYS = (
    "data.kwargs.x",
    "trainer.address",
    "trainers",
    "placement.edge",
    "placement.labels",
    "privacy.inputs_to",
    "deployment.staleness",
    "server.listen",
    "x",
    "log",
)
"""Keys that a damaged configuration says something absurd of."""


def _config_files(good: str) -> st.SearchStrategy[bytes]:
    keys = st.sampled_from(_KEYS)
    values = st.one_of(absurd_texts, json_values.map(partial(json.dumps, default=str)).map(str.encode))
    return damaged(good.encode()) | st.builds(lambda key, value: key.encode() + b" = " + value, keys, values)


def _read_configuration(cls: type[Any]) -> Callable[[Path], object]:
    return lambda path: load_config(cls, path, environ={})


def _read_placement(path: Path) -> object:
    """Read it as a command does: judged, and with a program for every worker."""
    placement = load_placement(path, blocks=4, batch_size=8)
    model = ModelFacts(tuple(BlockFacts(name, has_buffers=True, min_samples=2) for name in "abcd"))
    check(placement, model, Permissions(inputs_to=frozenset({"near", "far"})))
    plan = StepPlan(placement, model)
    return [plan.crossings, *(plan.program(worker) for worker in placement.workers)]


def _read_layers(path: Path) -> object:
    """Read it as a command does: with every schedule of two members."""
    layers = load_layers(path).among(2)
    return [schedule(layers).events for schedule in STRATEGIES.values()]


def _read_table(path: Path) -> object:
    """Everything that follows from a table."""
    table = load_table(path)
    return complete(known_devices({"damaged": table, "good": table_of("good", costs_of(1, 4))}), table)


def _read_timeline(path: Path) -> object:
    return summary(choose_window(load_timeline(path), 2))


def _read_images(path: Path) -> object:
    labels = struct.pack(">4B1I", 0, 0, 8, 1, 2) + bytes(2)
    (path.parent / "train-labels-idx1-ubyte").write_bytes(labels)
    return fashion_mnist(str(path.parent))


def _believed(found: object) -> object:
    if not found:
        raise StorageError("nothing that is to be believed")
    return found


def _read_edge_record(folder: Path, data: bytes) -> object:
    LocalFiles(folder).folder(SESSION_ID).write("session.json", data)
    return _believed(list(stored_sessions(LocalFiles(folder))))


def _read_parts(path: Path) -> object:
    return _believed(PartFile(path, WorkerMeasurements).find())


def _read_trainer_record(folder: Path, data: bytes) -> object:
    files = LocalFiles(folder)
    files.folder(SESSION_ID).write("session.json", data)
    store = SessionStore(files, 1, Quota(1, 1))
    try:
        return _believed(asyncio.run(store.record(SESSION_ID)))
    finally:
        store.close()


def kinds() -> Mapping[str, Kind]:
    """All of them, by name."""
    recipe = Recipe.model_validate_json(open_request().recipe_json)
    chain = build_checked_chain("shared.model.zoo:mlp", {}, 0, torch.zeros(BATCH, FEATURES))
    held = HeldBlocks(chain, recipe, torch.device("cpu"), range(1, 3))
    block = chain.blocks[1]
    block_file = state_file.serialize(block_state.collect(block, None))
    stage_file = serialize(copy_state(held))
    kept = KeptFeatures(BATCH)
    kept.begin("feature 2 from edge to trainer", {0: TensorSpec((BATCH, 2), torch.float32)})
    kept.keep(0, torch.tensor([1, 4]), torch.ones(2, 2))
    increment_file = serialize(kept.copy().rows)
    facts = {"placement": {"schema": "isthmus.placement/v1"}}

    def read_manifest(folder: Path, data: bytes) -> object:
        store = CheckpointStore(LocalFiles(folder), 1)
        store.save(NAME, facts, stage_file, Increments((), increment_file))
        store.files.write(f"checkpoint-{NAME}.json", data)
        store.is_whole(NAME)
        store.prune()
        return put_back(held, range(1, 3), load_states(store, NAME, [1, 2, KEPT]))

    def read_state(folder: Path, data: bytes) -> object:
        store = CheckpointStore(LocalFiles(folder), 1)
        store.save(NAME, facts, data)
        return put_back(held, range(1, 3), states_in(store.load(NAME).data))

    def read_increment(folder: Path, data: bytes) -> object:
        store = CheckpointStore(LocalFiles(folder), 1)
        store.save(NAME, facts, stage_file, Increments((), data))
        return KeptFeatures(BATCH).put_back(load_states(store, NAME, [KEPT]).get(KEPT, {}))

    def read_block(_folder: Path, data: bytes) -> object:
        return block_state.check(block, recipe.optimizer, block_state.from_file(block, recipe.optimizer, data))

    manifest = {"format": FORMAT, "lineage": NAME.lineage, "step": NAME.step, "facts": facts}
    manifest |= {"bytes": len(stage_file), "xxh3_128": xxhash.xxh3_128_hexdigest(stage_file)}
    manifest["increments"] = described((Increment.of(f"checkpoint-{NAME}.increment.safetensors", increment_file),))
    request = b64encode(open_request().SerializeToString()).decode()
    trainer_record = {"request": request, "subject": "ours"}
    table = json.loads(table_to_json(table_of("slow", costs_of(1, 4))))
    tokens = make_token("pi-7", list(Scope))[1] + make_token("pi-8", [Scope.READ])[1]
    return {
        "edge configuration": Kind(_config_files(EDGE), _a_file("edge.toml", _read_configuration(EdgeConfig))),
        "several trainers": Kind(_config_files(PLACED), _a_file("edge.toml", _read_configuration(EdgeConfig))),
        "placement": Kind(json_files(PLACEMENT), _a_file("placement.json", _read_placement)),
        "trainer configuration": Kind(_config_files(TRAINER), _a_file("t.toml", _read_configuration(TrainerConfig))),
        "tokens": Kind(_token_files(tokens), _a_file("tokens.toml", read_tokens)),
        "profile": Kind(json_files(PROFILE), _a_file("profile.json", load_profile)),
        "profile of three tiers": Kind(json_files(TIERS), _a_file("tiers.json", load_profile)),
        "layers": Kind(json_files(LAYERS), _a_file("layers.json", _read_layers)),
        "latency table": Kind(json_files(table), _a_file("table.json", _read_table)),
        "parts of a profile": Kind(json_files(PARTS), _a_file("profile.json.parts", _read_parts)),
        "time line": Kind(json_files(TIMELINE), _a_file("timeline.json", _read_timeline)),
        "Mahimahi trace": Kind(damaged(MAHIMAHI), _a_file("trace.up", load_trace)),
        "packed trace": Kind(_packed(MAHIMAHI), _a_file("trace.xz", load_trace)),
        "Ghent trace": Kind(damaged(GHENT), _a_file("trace.log", load_trace)),
        "CSV trace": Kind(damaged(CSV), _a_file("trace.csv", load_trace)),
        "5G lists": Kind(damaged(LISTS_5G), _a_file("trace.txt", lambda path: load_trace(path, 2))),
        "step log": Kind(damaged(STEPS), _a_file("steps.log", check_steps)),
        "edge record": Kind(_sealed(RECORD), _read_edge_record),
        "trainer record": Kind(_sealed(trainer_record), _read_trainer_record),
        "checkpoint manifest": Kind(_sealed(manifest), read_manifest),
        "checkpoint state": Kind(_tensor_files(stage_file), read_state),
        "checkpoint increment": Kind(_tensor_files(increment_file), read_increment),
        "block state": Kind(_tensor_files(block_file), read_block),
        "images": Kind(damaged(IMAGES), _a_file("train-images-idx3-ubyte", _read_images)),
    }


def _packed(good: bytes) -> st.SearchStrategy[bytes]:
    return damaged(lzma.compress(good)) | damaged(good).map(lzma.compress)


def _token_files(good: str) -> st.SearchStrategy[bytes]:
    return damaged(good.encode()) | absurd_texts.map(lambda text: b"[[token]]\nsubject = " + text)


@contextmanager
def _empty(folder: Path) -> Iterator[None]:
    folder.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(folder)


def read_damaged(kind: Kind, folder: Path, count: int, number: int = 0) -> int:
    """Read that many files of a kind, drawn from the seed `number`; returns how many were accepted.

    Raises whatever is not an IsthmusError.
    """
    accepted = 0

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(kind.files)
    def read(data: bytes) -> None:
        with _empty(folder / "read"), suppress(IsthmusError):
            kind.read(folder / "read", data)
            nonlocal accepted
            accepted += 1

    read()
    return accepted
