"""The trainer's configuration, as far as several keys are concerned."""

import pytest

from cloud_trainer.config import TrainerConfig
from edge_agent.config import EdgeConfig
from shared.config import example_toml, load_config
from shared.errors import ConfigError


def test_the_trainer_accepts_any_chunk_that_an_edge_may_send():
    largest_chunk = EdgeConfig.model_validate({"link": {"chunk_bytes": 4 * 1024 * 1024}}).link.chunk_bytes
    with pytest.raises(
        ConfigError, match=r"server\.max_message_bytes is 4_194_304; it must be an integer of 5_242_880"
    ):
        load_config(TrainerConfig, None, [f"server.max_message_bytes={largest_chunk}"], {})


def test_the_example_names_no_file_of_another_program():
    for kind, own in [(TrainerConfig, "/etc/cloud-trainer/"), (EdgeConfig, "/etc/edge-agent/")]:
        paths = [word for word in example_toml(kind).split('"') if word.startswith("/etc/")]
        assert paths
        assert all(path.startswith(own) for path in paths)


def test_only_factories_and_packages_can_be_allowed():
    allowed = load_config(TrainerConfig, None, ['models.allowed=["a", "b.c", "b.c:make"]'], {}).models.allowed
    assert allowed == ("a", "b.c", "b.c:make")
    for wrong in ("a.*", "a:", "a:b.c", "a:b:c"):
        with pytest.raises(ConfigError, match=r"it must be package\.module:factory, or a dotted package name"):
            load_config(TrainerConfig, None, [f'models.allowed=["{wrong}"]'], {})


@pytest.mark.parametrize("wrong", ["", "../other", "a/b", "edge-agent", "corner-groups", ".hidden"])
def test_the_folder_of_a_trainer_is_one_name_and_nobody_elses(wrong):
    with pytest.raises(ConfigError, match=r"checkpoints"):
        load_config(TrainerConfig, None, [f'checkpoints.name="{wrong}"'], {})


def test_a_group_has_room_for_its_first_members():
    wrong = 'groups=[{name="line", size=3, most=2}]'
    with pytest.raises(ConfigError, match=r"most is 2 and size 3; most must be 3 or more"):
        load_config(TrainerConfig, None, [wrong], {})
    (group,) = load_config(TrainerConfig, None, [wrong.replace("most=2", "most=5")], {}).groups
    assert group.ranks == range(5)
