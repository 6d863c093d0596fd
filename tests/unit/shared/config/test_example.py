"""The example file: it has every key, at its default."""

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


USERS_OF_OPTIONAL_KEYS: dict[type[Config], list[str]] = {
    EdgeConfig: ["training.optimizer.name=adam", "training.schedule.name=cosine", "checkpoints.replicas=1"],
    TrainerConfig: [],
}
ALONE = {
    "group",
    "data.shard",
    "choice.policy",
    "deployment.changes",
    "data.sample_weights",
    "data.batch_sampler",
    "training.schedule.mode",
}
"""Keys of a group's member, of a run among candidates, and of kept features, which cannot have some of the others; and
those that decide the order of samples, of which a file has one, and one of another schedule."""
FORMS: list[tuple[type[Config], set[str]]] = [
    (TrainerConfig, set()),
    (EdgeConfig, {"trainers", "placement.labels", "placement.file", *ALONE}),
    (EdgeConfig, {"trainer", "deployment.cut", "placement.labels", "privacy.inputs_to", *ALONE}),
]
"""A side, and the keys that say the file's content in another form."""


IN_SHORT = {"training.start_from.key"}
"""Keys of tables for which a text stands in the example."""


@pytest.mark.parametrize(("cls", "left_out"), FORMS)
def test_every_key_stands_in_the_example_file_and_its_commented_keys_load_too(
    cls: type[Config], left_out: set[str], tmp_path: Path
):
    uncommented = re.sub(r"(?m)^#(?! )", "", example_toml(cls))
    assert keys(tomllib.loads(uncommented), cls()) == set(leaves(cls()))
    path = tmp_path / "example.toml"
    path.write_text(without(uncommented, left_out))
    loaded = load_config(cls, path, overrides=USERS_OF_OPTIONAL_KEYS[cls], environ={})
    unset = {key for key, value in leaves(loaded).items() if value is None}
    assert unset == {key for key in unset if within(key, left_out | IN_SHORT)}


def without(toml: str, left_out: set[str]) -> str:
    """Return the lines of a file without those of some keys or tables."""
    lines, table = [], ""
    for line in toml.splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        key = f"{table}.{line.partition(' =')[0]}".removeprefix(".")
        if not within(key, left_out):
            lines.append(line)
    return "\n".join(lines)


def within(key: str, names: set[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


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
