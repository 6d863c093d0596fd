"""Ranges of blocks: read as they are written, and anything else refused in a sentence."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.placement import BlockRange, parse_range, ranges_of

BLOCKS = st.integers(0, 999_999)


@st.composite
def ranges(draw):
    first = draw(BLOCKS.filter(lambda block: block < 999_999))
    return BlockRange(first, draw(st.none() | st.integers(first + 1, 999_999)))


@given(written=ranges(), blocks=BLOCKS)
def test_a_range_is_read_back_as_it_was_written(written, blocks):
    assert parse_range(str(written)) == written
    assert written.bounds(blocks) == (written.first, blocks if written.stop is None else written.stop)


@given(blocks=st.sets(st.integers(0, 30)))
def test_ranges_of_blocks_hold_each_of_them_once_and_do_not_touch(blocks):
    found = [one.bounds(0) for one in ranges_of(blocks)]
    assert [block for bounds in found for block in range(*bounds)] == sorted(blocks)
    assert all(before[1] < after[0] for before, after in pairwise(found))


@given(text=st.text(max_size=20) | st.from_regex(r"[-0-9: ]{0,12}", fullmatch=True))
def test_any_text_is_a_range_that_holds_a_block_or_is_refused(text):
    if not re.fullmatch(r"[0-9]{1,6}:([0-9]{1,6})?", text, re.ASCII):
        with pytest.raises(ValueError, match="is not a range"):
            parse_range(text)
        return
    first, _, stop = text.partition(":")
    if stop and int(stop) <= int(first):
        with pytest.raises(ValueError, match="holds no block"):
            parse_range(text)
    else:
        assert parse_range(text) == BlockRange(int(first), int(stop) if stop else None)


@given(first=BLOCKS, stop=BLOCKS)
def test_a_range_without_a_block_is_refused(first, stop):
    if stop <= first:
        with pytest.raises(ValueError, match="holds no block"):
            parse_range(f"{first}:{stop}")
    else:
        assert parse_range(f"{first}:{stop}") == BlockRange(first, stop)


@pytest.mark.parametrize(
    "text", ["", ":", "6", ":6", "-1:2", "1:2:3", "1.0:2", "٣:٤", " 1:2", "1:2\n", "9" * 5000 + ":"]
)
def test_text_that_is_nearly_a_range_is_refused(text):
    with pytest.raises(ValueError, match="is not a range of blocks as 2:6"):
        parse_range(text)
