"""A checkpoint of a group is removed where it is damaged, and stays where it only cannot be read now."""

import json

import pytest
import torch

from cloud_trainer.config import GroupConfig
from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore, StoredMembers
from cloud_trainer.groups.lives import Life
from cloud_trainer.groups.merging import Snapshot
from shared.checkpoint import CheckpointName, CheckpointStore, DamagedCheckpointError, seal
from shared.checkpoint.files import LocalFiles
from shared.concurrency.threads import WorkerThread
from shared.errors import ConfigError, StorageError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.placed import recipe

NAMES = [CheckpointName(1, 10), CheckpointName(1, 20)]


async def saved(store, name):
    """Save a checkpoint."""
    told = recipe("sgd")
    agreement = Agreement(pb.OpenSessionRequest(recipe_json=told.model_dump_json()), told, 0, (0,))
    copied = Snapshot(name.step, {"0/parameter/weight": torch.ones(2)}, 3)
    await store.begin_saving(name, agreement, copied, {0: 0, 2: name.step})
    await store.written()


@pytest.fixture
async def store(tmp_path):
    disk = WorkerThread("disk")
    store = GroupStore(GroupConfig(name="line", size=2), LocalFiles(tmp_path), disk)
    for name in NAMES:
        await saved(store, name)
    assert sorted(await store.names()) == NAMES
    yield store
    disk.close()


def test_a_member_of_another_protocol_than_a_stored_group_is_refused():
    told = recipe("sgd")
    stored, member = (Agreement(pb.OpenSessionRequest(protocol_version=spoken), told, 0, (0,)) for spoken in (29, 30))
    stored.check("line", stored)
    with pytest.raises(ConfigError, match="protocol version 29, and this member has 30; all go on with the version"):
        stored.check("line", member)


async def test_members_stay_until_the_training_is_forgotten(store):
    kept = StoredMembers({0: 0, 2: 7}, (2,), {0: "ours", 2: ""})
    await store.write_members(kept)
    store.begin_life(Life(2, NAMES[0], 0, 5, {}), 40)
    assert await store.members(await store.newest()) == kept
    await store.forget()
    assert (await store.members(None), await store.names()) == (None, [])


@pytest.mark.parametrize(("origin", "stays"), [(NAMES[0], NAMES[:1]), (NAMES[1], NAMES), (None, [])])
async def test_what_a_group_goes_back_from_stays_until_its_new_life_has_a_checkpoint(origin, stays, store):
    store.begin_life(Life(2, origin, 0, 5, {}), 40)
    assert sorted(await store.names()) == NAMES
    newest = CheckpointName(2, 12)
    await saved(store, newest)
    assert sorted(await store.names()) == [*stays, newest]


WHOLE = seal(StoredMembers({0: 0, 2: 7}, (2,)).document)


@pytest.mark.parametrize(
    "found",
    [
        None,
        b"",
        WHOLE[:-5],
        WHOLE.replace(b"2", b"1", 1),
        b"\x00" * len(WHOLE),
        json.dumps([1, 2]).encode(),
        seal({}),
        seal({"staying": 7}),
        seal({"staying": "02"}),
        seal({"staying": [0, 2]}),
        seal({"staying": [[0, -1]]}),
        seal({"staying": [[True, 0]]}),
        seal({"staying": [[0, 0, 0]]}),
        seal({"staying": [[0, 0]], "finished": {"0": 1}}),
        seal({"staying": [[0, 0]], "owners": {"0": "ours"}}),
        seal({"staying": [[0, 0]], "owners": [[0, 7]]}),
        seal({"staying": [[0, 0]], "owners": [[-1, "ours"]]}),
        seal({"staying": [[0, 0]], "owners": [0, "ours"]}),
    ],
)
async def test_members_that_are_damaged_or_missing_are_those_of_the_newest_checkpoint(found, store, tmp_path):
    if found is not None:
        (tmp_path / "members.json").write_bytes(found)
    assert await store.members(await store.newest()) == StoredMembers({0: 0, 2: NAMES[-1].step})


async def test_a_training_that_is_forgotten_in_part_has_ended(store, monkeypatch):
    await store.write_members(StoredMembers({0: 0, 2: 7}, (0, 2)))
    remove = CheckpointStore.remove

    def fail(self, name):
        if name == NAMES[0]:
            raise StorageError("it cannot be removed")
        remove(self, name)

    monkeypatch.setattr(CheckpointStore, "remove", fail)
    with pytest.raises(StorageError, match="it cannot be removed"):
        await store.forget()
    assert (await store.members(await store.newest())).have_finished


@pytest.mark.parametrize(
    ("members", "have_finished"),
    [
        (StoredMembers({0: 0, 1: 0}), False),
        (StoredMembers({0: 0, 1: 3}, (1,)), False),
        (StoredMembers({0: 0, 1: 3}, (1, 0)), True),
        (StoredMembers({}), False),
    ],
)
def test_a_training_has_ended_when_all_who_stay_have_its_results(members, have_finished):
    assert members.have_finished is have_finished


def failing(monkeypatch, error):
    load = CheckpointStore.load

    def fail(self, name):
        if name == NAMES[-1]:
            raise error("it cannot be read")
        return load(self, name)

    monkeypatch.setattr(CheckpointStore, "load", fail)


async def test_a_damaged_one_is_removed_and_an_older_one_counts(store, monkeypatch):
    failing(monkeypatch, DamagedCheckpointError)
    assert (await store.newest()).name == NAMES[0]
    assert await store.names() == NAMES[:1]


async def test_one_that_cannot_be_read_now_stays(store, monkeypatch):
    failing(monkeypatch, StorageError)
    with pytest.raises(StorageError, match="it cannot be read"):
        await store.newest()
    assert sorted(await store.names()) == NAMES
