"""Damage to bytes and documents, as hypothesis strategies. Knows no format of ours."""

import json
import re
from copy import deepcopy
from functools import partial
from typing import Any

from hypothesis import strategies as st

DIGITS = "9" * 5000
"""More than Python turns into a number."""
DEEP = 100_000
"""Levels that no parser which calls itself comes back from."""

integers = st.sampled_from([0, 1, -1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400])
numbers = st.one_of(
    integers, st.integers(-10, 100), st.sampled_from([0.0, -0.0, 0.5, 1e308, 5e-324, float("nan"), float("inf")])
)
texts = st.one_of(
    st.sampled_from(
        ["", "x", "\x00\x1b[2J\n", "../../etc/passwd", "é" * 500, "\ud800", "z" * 20_000, "os:system", "nan"]
    ),
    st.text(max_size=8),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)

absurd_numbers = st.sampled_from(
    [
        DIGITS.encode(),
        b"0x" + b"f" * 5000,
        b"1e999",
        b"-1e999",
        b"NaN",
        b"Infinity",
        b"-1",
        b"1" + b"0" * 400,
        b"0",
        b"1e18",
    ]
)
absurd_texts = absurd_numbers | st.sampled_from(
    [
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b"1" + b"_0" * 3000,
        b"9999-99-99",
        b"2026-01-01T25:61:61Z",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\x00",
        b"\r\n",
        b'"\\ud800"',
        b'"\\u0000"',
        b"x" * 200_000,
        b"",
    ]
)


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes that were right once: as they were, cut off, with bits flipped, or with something else put in somewhere."""
    match draw(st.integers(0, 6)):
        case 0:
            return good
        case 1:
            return good[: draw(st.integers(0, max(len(good) - 1, 0)))]
        case 2:
            data = bytearray(good or b"\x00")
            for bit in draw(st.lists(st.integers(0, 8 * len(data) - 1), min_size=1, max_size=8)):
                data[bit // 8] ^= 1 << bit % 8
            return bytes(data)
        case 3:
            begin = draw(st.integers(0, len(good)))
            end = draw(st.integers(begin, min(begin + 16, len(good))))
            return good[:begin] + draw(absurd_texts | st.binary(max_size=16)) + good[end:]
        case 4 if found := list(re.finditer(rb"\d+", good)):
            begin, end = draw(st.sampled_from(found)).span()
            return good[:begin] + draw(absurd_numbers) + good[end:]
        case 5:
            return good + draw(absurd_texts | st.binary(max_size=16))
        case _:
            return draw(absurd_texts | st.binary(max_size=64))


@st.composite
def reworded(draw: st.DrawFn, good: Any) -> Any:
    """A document of JSON with up to three of its values replaced or removed, or with keys that it has not."""
    document = deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        at, key = None, None
        inside = document
        while isinstance(inside, dict | list) and inside:
            at, key = inside, draw(st.sampled_from(sorted(inside) if isinstance(inside, dict) else range(len(inside))))
            inside = at[key]
            if draw(st.booleans()):
                break
        if at is None:
            return draw(json_values)
        match draw(st.integers(0, 5)):
            case 0:
                del at[key]
            case 1 if isinstance(at, dict):
                at[draw(texts)] = draw(json_values)
            case _:
                at[key] = draw(json_values)
    return document


def json_files(good: Any) -> st.SearchStrategy[bytes]:
    """Files that once held this document."""
    return damaged(json.dumps(good).encode()) | reworded(good).map(partial(json.dumps, default=str)).map(str.encode)
