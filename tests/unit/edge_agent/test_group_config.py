"""A member's configuration: what no member can have is refused in a sentence, and its part of the data is its rank's."""

import pytest
import torch

from edge_agent.config import EdgeConfig
from edge_agent.data import BatchLoader, TensorDataset
from shared.config import load_config
from shared.errors import ConfigError, DataError

MEMBER = 'group={name="line", rank=1, size=2}'
PLANNED = "engine.profile=profile.json"


def loaded(*flags):
    return load_config(EdgeConfig, None, flags, environ={})


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["data.shard=rank"], "data.shard is set and group.name is not"),
        (["group.rank=1"], "is set and group.name is not; name the group"),
        (
            ['group={name="line", rank=2, size=2}', "data.shard=rank"],
            "divides the data among ranks 0 to 1; a member that",
        ),
        (['group={name="line", rank=-1}'], "group.rank is -1; it must be an integer of 0 or more"),
        (['group={name="a line", rank=0}'], "1 to 63 letters, digits, - and _"),
        (['group={name="line", rank=0}', "data.shard=rank"], "set group.size"),
        ([MEMBER, "data.shard=rank", "data.drop_last=false"], "leave drop_last true"),
        (
            [MEMBER, "deployment.cut=1", 'trainers=[{name="a", address="a:1"}, {name="b", address="b:1"}]'],
            "a cut takes one trainer",
        ),
        ([MEMBER, "placement.edge=0:"], "a member of a group runs all blocks"),
        ([MEMBER, "trainers=[]"], "trainers is empty"),
        ([MEMBER, "deployment.staleness=[[0, 1], [2, 0]]"], "all members of a group have one K"),
        ([MEMBER, "training.accumulate_batches=2"], "a group updates after each batch"),
        (
            [MEMBER, "deployment.staleness_correction=prediction", "training.optimizer.name=adam"],
            'deployment.staleness_correction is "prediction"; a group has the momentum of its weights',
        ),
        ([MEMBER, "checkpoints.replicas=1"], "the trainer alone has the checkpoints"),
        ([MEMBER, "output.record=true", "output.directory=runs"], "do not tell the weights of a group"),
        ([MEMBER, PLANNED, "deployment.cut=1"], "each says where the member begins"),
        ([MEMBER, PLANNED, "deployment.staleness=2"], "a group is planned at K = 0"),
        (
            [MEMBER, PLANNED, "engine.bits=[8]"],
            "engine.bits is set; a member begins as engine.profile plans, and keeps",
        ),
        (['group={name="line", rank=1}', PLANNED], "nothing says how many devices share the trainer; set group.size"),
        (
            [MEMBER, PLANNED, 'trainers=[{name="a", address="a:1"}, {name="b", address="b:1"}]'],
            "engine.profile is set, and 2 trainers are configured",
        ),
    ],
)
def test_what_no_member_can_have_is_refused(flags, sentence):
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        loaded(*flags)


def test_the_parts_of_all_ranks_are_the_whole_batch():
    samples = TensorDataset(torch.arange(22).float().unsqueeze(1), torch.arange(22))
    whole = BatchLoader(samples, 9, 0, True, 0)
    parts = [BatchLoader(samples, 3, 0, True, 0, first_sample=3 * rank, group_batch=9) for rank in range(3)]
    assert {part.steps_per_epoch for part in parts} == {whole.steps_per_epoch} == {2}
    for batches in zip(whole.iterate(0, 5), *(part.iterate(0, 5) for part in parts), strict=True):
        assert torch.equal(batches[0].labels, torch.cat([batch.labels for batch in batches[1:]]))


def test_a_data_set_that_is_too_small_for_all_ranks_is_refused():
    samples = TensorDataset(torch.zeros(8, 1), torch.zeros(8).long())
    with pytest.raises(DataError, match=r"8 samples, fewer than one batch of 9; set data\.batch_size to 2 or less$"):
        BatchLoader(samples, 3, 0, True, 0, first_sample=3, group_batch=9)


class Drawing:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.rand(1), 0


def test_members_draw_other_random_numbers_and_the_first_those_of_a_device_alone():
    alone, first, second = [
        next(BatchLoader(Drawing(), 2, 0, True, 0, first_sample=begin).iterate(0, 1)).inputs for begin in (0, 0, 2)
    ]
    assert torch.equal(alone, first)
    assert not torch.equal(first, second)
