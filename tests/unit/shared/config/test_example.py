"""The example file is the defaults, and has every key."""

import re
import tomllib
from pathlib import Path

import pytest

from cloud_trainer.config import TrainerConfig
from edge_agent.config import EdgeConfig
from shared.config import Config, Section, example_toml, load_config

ROOTS: list[type[Config]] = [EdgeConfig, TrainerConfig]


@pytest.mark.parametrize("cls", ROOTS)
def test_the_example_file_loads_back_to_the_defaults(cls: type[Config], tmp_path: Path):
    path = tmp_path / "example.toml"
    path.write_text(example_toml(cls))
    assert load_config(cls, path, environ={}) == cls()


@pytest.mark.parametrize("cls", ROOTS)
def test_every_key_stands_in_the_example_file_and_its_commented_keys_load_too(cls: type[Config], tmp_path: Path):
    uncommented = re.sub(r"(?m)^#(?! )", "", example_toml(cls))
    path = tmp_path / "example.toml"
    path.write_text(uncommented)
    loaded = load_config(cls, path, overrides=USERS_OF_OPTIONAL_KEYS[cls], environ={})
    assert None not in leaves(loaded).values()
    assert keys(tomllib.loads(uncommented), loaded) == set(leaves(loaded))


USERS_OF_OPTIONAL_KEYS: dict[type[Config], list[str]] = {
    EdgeConfig: ["training.optimizer.name=adam", "training.schedule.name=cosine"],
    TrainerConfig: [],
}


def leaves(section: Section, at: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        found |= leaves(value, f"{at}{name}.") if isinstance(value, Section) else {f"{at}{name}": value}
    return found


def keys(table: dict, section: Section, at: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in table.items():
        inner = getattr(section, name)
        found |= keys(value, inner, f"{at}{name}.") if isinstance(inner, Section) else {f"{at}{name}"}
    return found
