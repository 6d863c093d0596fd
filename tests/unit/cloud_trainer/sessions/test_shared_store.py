"""Several trainers on one store: each writes in its own folder, and reads the parts of a run that others have written."""

import pytest
import torch

from cloud_trainer.sessions.session_store import Quota, SessionStore
from cloud_trainer.sessions.shared_store import OtherParts, facts_of_part
from cloud_trainer.sessions.stored_sessions import SessionOpening
from shared.checkpoint import CheckpointName, LocalFiles
from shared.errors import StorageError
from shared.training.held_state import CopiedPart
from shared.wire.isthmus.v1.trainer_pb2 import OpenSessionRequest

RUN, HERE, THERE = "e" * 32, "a" * 32, "b" * 32
NAME = CheckpointName(0, 20)
RECORD = SessionOpening(OpenSessionRequest(run_id=RUN), 1, "ours")
STATE = CopiedPart({"2/weight": torch.ones(3), "3/weight": torch.full((3,), 2.0)})


@pytest.fixture
def stores(tmp_path):
    """The stores of two trainers at one location."""
    location = LocalFiles(tmp_path)
    each = {
        name: SessionStore(location.folder(name), 1, Quota(1, 4000), others=OtherParts(location, name))
        for name in ("here", "there")
    }
    yield each
    for store in each.values():
        store.close()


def files_below(folder):
    """The content of each file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def written(store, session_id=HERE, record=RECORD, owned=(2, 3)):
    """Have a trainer write its part of a checkpoint."""
    await store.keep_record(session_id, record)
    assert await store.save(session_id, NAME, facts_of_part(owned), STATE, ())


async def read(store, others=(HERE,), record=RECORD):
    """The blocks that a trainer can read of the run."""
    await store.keep_record(THERE, record)
    await store.learn_others(THERE, record, others)
    return await store.replicas(THERE)


async def test_a_trainer_reads_the_part_of_another_one_and_leaves_it_as_it_is(stores, tmp_path):
    await written(stores["here"])
    before = files_below(tmp_path / "here")
    assert await read(stores["there"]) == {NAME: [2, 3]}
    found = await stores["there"].load(THERE, NAME, [2, 3])
    assert {block: tensors["weight"].tolist() for block, tensors in found.items()} == {2: [1.0] * 3, 3: [2.0] * 3}
    assert await stores["there"].load_block(THERE, NAME, 3)
    await stores["there"].forget(THERE)
    assert files_below(tmp_path / "here") == before


async def test_blocks_that_a_trainer_shares_and_does_not_own_are_not_taken_from_it(stores):
    await written(stores["here"], owned=[3])
    assert await read(stores["there"]) == {NAME: [3]}
    with pytest.raises(StorageError):
        await stores["there"].load(THERE, NAME, [2])


@pytest.mark.parametrize(
    "of_other",
    [
        SessionOpening(OpenSessionRequest(run_id=RUN), 1, "theirs"),
        SessionOpening(OpenSessionRequest(run_id="f" * 32), 1, "ours"),
    ],
    ids=["another subject's", "another run's"],
)
async def test_a_session_of_another_subject_or_run_is_not_read(stores, of_other):
    await written(stores["here"], record=of_other)
    assert await read(stores["there"]) == {}


async def test_a_session_that_nobody_has_named_is_not_read(stores):
    await written(stores["here"])
    assert await read(stores["there"], others=()) == {}
    assert await read(stores["there"], others=("c" * 32,)) == {}


async def test_a_damaged_part_is_not_taken(stores, tmp_path):
    await written(stores["here"])
    (manifest,) = (tmp_path / "here" / HERE).glob("checkpoint-*.json")
    manifest.write_bytes(b"{}")
    assert await read(stores["there"]) == {}


async def test_each_trainer_counts_its_own_sessions_and_removes_no_other(stores, tmp_path):
    await written(stores["here"])
    stores["here"].close()  # it has died, and holds nothing
    assert await stores["there"].reserve_room(THERE, "ours", lambda _: False)
    await written(stores["there"], THERE)
    await stores["there"].forget_abandoned(0.0, lambda _: False)
    assert [path.name for path in (tmp_path / "here").iterdir()] == [HERE]
    assert not [*(tmp_path / "there").iterdir()]
