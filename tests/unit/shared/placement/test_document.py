"""Placements as documents: read back as written, and refused in a sentence if invalid."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.placement import Rows, Source, document_of, load_placement, parse_placement
from tests.support.placements import models, placements

ONE = {"schema": "isthmus.placement/v1", "workers": ["edge"], "tiles": [{"worker": "edge", "blocks": [0, 4]}]}


@given(data=st.data())
def test_a_placement_is_read_back_as_it_was_written(data):
    placement = data.draw(placements(data.draw(models())))
    written = json.loads(json.dumps(document_of(placement)))
    assert parse_placement(written, "here", placement.blocks, placement.batch_size) == placement


def test_omitted_samples_are_the_whole_batch_at_the_first_worker():
    placement = parse_placement(ONE, "here", 4, 8)
    assert [tile.rows for tile in placement.tiles] == [Rows(0, 8)]
    assert placement.sources == (Source("edge", Rows(0, 8)),)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "here: the placement is []; it must be an object"),
        ({"schema": "other"}, "here: schema is 'other'; this version reads \"isthmus.placement/v1\""),
        (ONE | {"tils": []}, "here: the placement has the unknown key 'tils'"),
        (ONE | {"workers": "edge"}, 'here: workers is "edge"; it must be a list'),
        (ONE | {"workers": [1]}, "here: a worker is 1; it must be a name"),
        (
            ONE | {"tiles": [{"worker": "edge", "blocks": [0]}]},
            "blocks of a tile is [0]; it must be a pair [begin, end]",
        ),
        (ONE | {"tiles": [{"worker": "edge", "blocks": [0, -1]}]}, "blocks of a tile is -1; it must be an integer"),
        (ONE | {"tiles": [{"worker": "edge", "blocks": [0, True]}]}, "blocks of a tile is true; it must be an integer"),
        (ONE | {"owners": {"x": "edge"}}, 'a block of owners is "x"; it must be a number in quotes'),
        (ONE | {"owners": {"9" * 5000: "edge"}}, "it must be a number in quotes"),
        (ONE | {"owners": {"٣": "edge"}}, "it must be a number in quotes"),
        (ONE | {"owners": []}, "owners is []; it must be an object"),
        (ONE | {"staleness": 1.5}, "staleness is 1.5; it must be an integer of 0 or more"),
        (
            ONE | {"codecs": [{"from": "a", "to": "b", "cargo": "sand"}]},
            'cargo of a codec is "sand"; it must be one of',
        ),
    ],
)
def test_an_invalid_placement_is_refused_with_the_name_of_the_fault(document, sentence):
    with pytest.raises(ConfigError) as refused:
        parse_placement(document, "here", 4, 8)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(("text", "sentence"), [("{", "is not JSON"), ("[" * 100_000, "is not JSON")])
def test_a_file_that_is_no_json_is_refused(tmp_path, text, sentence):
    path = tmp_path / "placement.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_placement(path, 4, 8)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_placement(tmp_path / "none.json", 4, 8)
