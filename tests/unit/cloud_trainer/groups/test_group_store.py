"""A checkpoint of a group is removed where it is damaged, and stays where it only cannot be read now."""

import pytest
import torch

from cloud_trainer.groups.agreement import Agreement
from cloud_trainer.groups.group_store import GroupStore
from shared.checkpoint import CheckpointName, CheckpointStore, DamagedCheckpointError
from shared.checkpoint.files import LocalFiles
from shared.concurrency.threads import WorkerThread
from shared.errors import StorageError
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from tests.support.placed import recipe

NAMES = [CheckpointName(1, 10), CheckpointName(1, 20)]


@pytest.fixture
async def store(tmp_path):
    disk, told = WorkerThread("disk"), recipe("sgd")
    store = GroupStore("line", LocalFiles(tmp_path), disk)
    agreement = Agreement(pb.OpenSessionRequest(recipe_json=told.model_dump_json()), told, 0, (0,))
    for name in NAMES:
        await store.begin_saving(name, agreement, {"0/parameter/weight": torch.ones(2)})
    await store.written()
    assert sorted(await store.names()) == NAMES
    yield store
    disk.close()


async def test_members_stay_until_the_training_is_forgotten(store):
    assert await store.members() is None
    await store.keep_members({0: 0, 2: 7})
    await store.go_back(NAMES[0])
    assert await store.members() == {0: 0, 2: 7}
    await store.forget()
    assert (await store.members(), await store.names()) == (None, [])


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
