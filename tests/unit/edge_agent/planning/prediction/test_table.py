"""Latency tables: permitted content, and the sentence for everything else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.planning.prediction import known_devices, load_table, representatives, table_to_json
from edge_agent.planning.prediction.table import MOST_FILE_BYTES
from shared.errors import PlanError
from tests.support.latency import LAYERS, costs_of, table_of, write_table


@pytest.fixture
def document():
    return json.loads(table_to_json(table_of("phone", costs_of(1))))


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = table_of("phone", costs_of(1))
    assert load_table(write_table(tmp_path, table)) == table


def test_the_file_has_the_keys_of_the_schema(document):
    assert document["schema"] == "isthmus.latency/v1"
    assert document["layers"] == LAYERS
    assert len(document["reference"]) == 10
    assert set(document["samples"][0]) == {"layers", "seconds"}


def test_any_vector_of_0_and_1_is_legal_and_operations_may_be_missing(document, tmp_path):
    document.pop("flops")
    document["samples"] += [{"layers": [1, 0] * 4, "seconds": 1.0}, {"layers": [0] * LAYERS, "seconds": 1e-3}]
    path = tmp_path / "any.json"
    path.write_text(json.dumps(document))
    assert load_table(path).samples[-1].layers == (0,) * LAYERS


def set_in(*steps):
    *way, last = steps[:-1]

    def change(document):
        for step in way:
            document = document[step]
        document[last] = steps[-1]

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (set_in("schema", "isthmus.latency/v2"), 'whose schema is "isthmus.latency/v1"'),
        (set_in("samples", 3, "seconds", 0), r"samples\[3\].seconds is 0; "),
        (set_in("samples", 3, "seconds", -1.5), r"samples\[3\].seconds is -1.5; "),
        (set_in("samples", 3, "seconds", float("nan")), r"samples\[3\].seconds is "),
        (set_in("samples", 3, "seconds", float("inf")), r"samples\[3\].seconds is "),
        (set_in("samples", 3, "seconds", "fast"), r'samples\[3\].seconds is "fast"; '),
        (set_in("samples", 2, "layers", [1, 0]), r"samples\[2\].layers has 2 entries; layers says 8"),
        (set_in("samples", 2, "layers", 1, 2), r"samples\[2\].layers\[1\] is 2; "),
        (set_in("reference", list(range(9))), "reference names 9 samples; 10 are needed"),
        (set_in("reference", [0] * 10), "reference names 1 samples; 10 are needed"),
        (set_in("reference", [*range(9), 36]), "reference names sample 36; the table has samples 0 to 35"),
        (set_in("flops", [1.0]), "flops has 1 entries; layers says 8"),
        (set_in("batch_size", 0), "batch_size is 0; "),
        (set_in("samples", {}), r"samples is \{\}; "),
    ],
)
def test_each_error_names_file_and_key(document, change, sentence, tmp_path):
    change(document)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    with pytest.raises(PlanError, match=sentence) as refused:
        load_table(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "[[[", "null", '{"schema": 1}', "\ud800".encode("utf-8", "surrogatepass")])
def test_a_file_that_is_no_table_is_refused(text, tmp_path):
    path = tmp_path / "none.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError, match=r"none\.json: "):
        load_table(path)


def test_a_file_that_no_table_needs_is_not_read(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MOST_FILE_BYTES + 1)
    with pytest.raises(PlanError, match=r"huge\.json: the latency table has more than"):
        load_table(path)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (table_of("b", costs_of(2), model="other"), 'b: model is "other", in a it is "chain"'),
        (table_of("b", costs_of(2), batch_size=8), "b: batch_size is 8, in a it is 32"),
        (table_of("b", costs_of(2)[:5]), "b: layers is 5, in a it is 8"),
    ],
)
def test_tables_of_one_predictor_are_of_one_thing(other, sentence):
    with pytest.raises(PlanError, match=sentence):
        known_devices({"a": table_of("a", costs_of(1)), "b": other})


def test_one_device_is_too_few():
    with pytest.raises(PlanError, match="2 devices or more; 1 table is given"):
        known_devices({"a": table_of("a", costs_of(1))})


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_representatives_span_the_work_from_the_least_to_the_most(work):
    chosen = representatives(work)
    assert len(set(chosen)) == len(chosen) == min(len(work), 10)
    assert {min(work), max(work)} <= {work[index] for index in chosen}
