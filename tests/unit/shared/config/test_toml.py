"""TOML: written values read back, and text that Python would choke on is refused in words."""

import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import EdgeConfig
from shared.config import load_config, parse_toml
from shared.config.toml import MAX_DEPTH, toml_value
from shared.errors import ConfigError
from shared.registry.optimizers import OptimizerGroup

VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_written_as_toml_reads_back(value):
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


@pytest.mark.parametrize(
    "value", ["[" * 100_000, "x." * 65 + "x = 1", "{a=" * 65 + "1" + "}" * 65, "9" * 5000, "0x" + "f" * 5000]
)
def test_a_file_that_python_would_choke_on_is_refused_in_words(tmp_path: Path, value: str):
    path = tmp_path / "edge.toml"
    path.write_text(value if " = " in value else f"x = {value}")
    with pytest.raises(ConfigError, match=r"edge.toml is not valid TOML: "):
        load_config(EdgeConfig, path, environ={})
    with pytest.raises(ConfigError, match=r"model\.kwargs"):
        load_config(EdgeConfig, None, [f"model.kwargs={value}"], environ={})


@pytest.mark.parametrize(("levels", "fits"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_tables_are_nested_so_deep_and_no_deeper(levels: int, fits: bool):
    text = "x = " + "[" * (levels - 1) + "]" * (levels - 1)
    with nullcontext() if fits else pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_toml(text)


def test_a_section_is_a_table_of_what_is_not_at_its_default():
    group = OptimizerGroup(match=("*.bias",), weight_decay=0.5)
    assert toml_value((group,)) == '[{ match = ["*.bias"], weight_decay = 0.5 }]'
