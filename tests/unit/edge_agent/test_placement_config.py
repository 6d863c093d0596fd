"""Trainers, placements and permissions of a configuration: a consistent one is read, any other refused in a sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import EdgeConfig
from edge_agent.experiment.experiment import Experiment
from edge_agent.placement_config import PlacementSection
from edge_agent.sessions.stored_session import SessionRecord
from shared.config import ComputeConfig, load_config
from shared.errors import ConfigError

GPU = '{name="gpu", address="gpu.example.org:50051"}'
FAR = '{name="far", address="far.example.org:50051"}'
TWO = f"trainers=[{GPU}, {FAR}]"


def loaded(*flags):
    return load_config(EdgeConfig, None, flags, environ={})


def test_the_short_form_is_one_trainer_that_is_called_trainer():
    assert [trainer.name for trainer in loaded().all_trainers] == ["trainer"]
    named = loaded("trainer.name=gpu", "trainer.address=a:1")
    assert (named.only_trainer.name, named.only_trainer.address) == ("gpu", "a:1")


def test_several_trainers_have_the_keys_that_one_has():
    several = loaded(
        'trainers=[{name="gpu", address="a:1", give_up_seconds=5.0, token="t"}, {name="far", address="b:2"}]'
    )
    assert [trainer.name for trainer in several.all_trainers] == ["gpu", "far"]
    assert several.all_trainers[0].give_up_seconds == 5.0
    with pytest.raises(ConfigError, match="one trainer is needed, and 2 are configured"):
        _ = several.only_trainer


def test_tokens_of_several_trainers_are_neither_printed_nor_recorded():
    several = loaded('trainers=[{name="gpu", address="a:1", token="hush"}]', "placement.edge=0:1", "placement.gpu=1:")
    assert "hush" not in several.model_dump_json() + repr(several)
    experiment = Experiment(several.model_copy(update={"compute": ComputeConfig(device="cpu", threads=1)}))
    record = SessionRecord.begun_now("0" * 32, experiment)
    assert "hush" not in record.model_dump_json()
    assert record.configuration.placement == several.placement
    assert record.trainer == "a:1"


def test_there_may_be_no_trainer_and_commands_that_need_one_say_so():
    alone = loaded("trainers=[]", "placement.edge=0:")
    assert alone.all_trainers == ()
    with pytest.raises(ConfigError, match="one trainer is needed, and none is configured"):
        _ = alone.only_trainer


def test_blocks_are_one_range_or_several():
    section = loaded(TWO, 'placement.edge=["0:2", "6:"]', "placement.gpu=2:6", "placement.labels=edge").placement
    assert section.blocks == {"edge": ("0:2", "6:"), "gpu": ("2:6",)}
    assert section.labels == "edge"
    assert section.given
    assert not PlacementSection().given


@given(blocks=st.dictionaries(st.sampled_from(["edge", "gpu", "far"]), st.lists(st.integers(0, 9), min_size=1)))
def test_a_written_section_is_read_back_unchanged(blocks):
    written = {name: [f"{first}:" for first in firsts] for name, firsts in blocks.items()}
    section = PlacementSection.model_validate_json(json.dumps(written))
    assert PlacementSection.model_validate_json(section.model_dump_json()) == section
    assert {name: list(texts) for name, texts in section.blocks.items()} == written


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((TWO, "trainer.address=a:1"), "trainer and trainers are both set"),
        ((f"trainers=[{GPU}, {GPU}]",), "trainers: two are named 'gpu'"),
        (('trainers=[{name="edge", address="a:1"}]',), 'trainers.0.name is "edge"; it must be 1 to 63 letters'),
        (('trainers=[{name="my gpu", address="a:1"}]',), 'trainers.0.name is "my gpu"; it must be 1 to 63 letters'),
        (('trainers=[{name="gpu"}]',), "trainers.0.address is missing; it must be host:port"),
        (('trainers=[{address="a:1"}]',), "trainers.0.name is missing; it must be 1 to 63 letters"),
        ((f"trainers=[{GPU[:-1]}, tokn=1}}]",), "unknown key trainers.0.tokn; did you mean trainers.0.token?"),
        ((TWO, "placement.gpuu=2:6"), "placement names 'gpuu', which is not configured; it may name edge, gpu, far"),
        (("trainers=[]", "placement.gpu=0:"), "placement names 'gpu', which is not configured; it may name edge"),
        ((TWO, "placement.edge=0:", "placement.labels=gpuu"), "placement.labels names 'gpuu', which is not"),
        ((TWO, 'privacy.inputs_to=["gpuu"]'), "privacy.inputs_to names 'gpuu', which is not configured"),
        ((TWO, 'privacy.inputs_to=["trainer"]'), "privacy.inputs_to names 'trainer', which is not configured"),
        ((TWO, 'privacy.gradients_to=["gpuu"]'), "privacy.gradients_to names 'gpuu', which is not configured"),
        (("deployment.cut=2", "placement.edge=0:"), "deployment.cut and placement both say which blocks run where"),
        (("placement.labels=edge",), "placement: labels says who computes the loss, but nobody has blocks"),
        (
            (TWO, "placement.gpu=0:", "placement.labels=gpu", "placement.file=p.json"),
            "placement: file holds the whole placement; leave gpu, labels out, or file",
        ),
        (("placement.edge=3:3",), 'placement.edge is "3:3"; it must be a range of blocks as "2:6"'),
        (('placement.edge=["0:2", "6"]',), 'placement.edge is ["0:2", "6"]; it must be a range of blocks'),
        (("placement.edge=2",), "placement.edge is 2; it must be a range of blocks"),
        (("placement.edge={a=1}",), "placement.edge is { a = 1 }; it must be a range of blocks"),
    ],
)
def test_contradictory_keys_are_refused_in_a_sentence(flags, sentence):
    with pytest.raises(ConfigError) as refused:
        loaded(*flags)
    assert sentence in str(refused.value)


def test_a_rule_over_several_keys_names_the_file_only_where_the_file_has_said_all(tmp_path):
    path = tmp_path / "edge.toml"
    path.write_text('[deployment]\ncut = 2\n[placement]\nedge = "0:"\n')
    with pytest.raises(ConfigError, match=rf"^{path}: deployment\.cut and placement"):
        load_config(EdgeConfig, path, (), environ={})
    with pytest.raises(ConfigError, match=r"^configuration: deployment\.cut and placement"):
        load_config(EdgeConfig, path, ("training.seed=1",), environ={})


REPLACED = 'trainers=[{name="gpu", address="a:1", replace_after_seconds=60}]'


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["checkpoints.replicas=1", "checkpoints.location=none"], "there is nothing to keep"),
        (['checkpoints.replicas="store"', "checkpoints.location=none"], "there is nothing to keep"),
        (["checkpoints.replicas=2"], r"checkpoints\.replicas"),
        ([REPLACED], r"set checkpoints\.replicas = 1"),
        (
            [REPLACED.replace("=60", "=60, give_up_seconds=60"), "checkpoints.replicas=1"],
            "would end before the trainer is replaced",
        ),
        (["trainer.replace_after_seconds=0", "checkpoints.replicas=1"], "replace_after_seconds"),
    ],
)
def test_an_invalid_replacement_is_refused(flags, says):
    with pytest.raises(ConfigError, match=says):
        loaded(*flags)


def test_a_replacement_needs_replicas_and_patience():
    config = loaded(REPLACED.replace("=60", "=60, give_up_seconds=61"), "checkpoints.replicas=1")
    assert config.all_trainers[0].replace_after_seconds == 60
    assert loaded(REPLACED, 'checkpoints.replicas="store"').all_trainers[0].replace_after_seconds == 60


def test_a_worker_may_be_at_hand_without_blocks():
    flags = (TWO, "placement.edge=0:2", "placement.gpu=2:", "placement.far=[]")
    config = load_config(EdgeConfig, None, flags, environ={})
    assert config.placement.blocks == {"edge": ("0:2",), "gpu": ("2:",), "far": ()}
