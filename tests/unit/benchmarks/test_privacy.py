"""Attacks on privacy: simple ones succeed on data that is refused by default. Permitted data resists attacks without
the weights."""

import functools

import pytest

from benchmarks.privacy import measured

pytestmark = pytest.mark.slow


@functools.cache
def rows():
    return measured()


def test_attacks_succeed_on_what_is_refused_by_default():
    refused = [row for row in rows() if not row.permitted]
    assert {row.attack for row in refused} == {
        "reading off",
        "correlation, median",
        "nearest row, with known weights",
        "counting tokens",
        "rows over bias",
        "smallest of the bias",
    }
    for row in refused:
        assert row.found >= 0.5, row


@pytest.mark.parametrize("attack", ["reading off", "rows over bias"])
def test_what_is_permitted_by_default_resists_attacks_without_the_weights(attack):
    permitted = [row for row in rows() if row.permitted and row.attack == attack]
    assert permitted
    for row in permitted:
        assert row.found <= 0.1, row


def test_with_known_weights_more_is_found_and_deeper_features_say_less():
    """The page on security states this result. If it changes, the page must change too."""
    texts = [row.found for row in rows() if row.permitted and row.attack.startswith("nearest row")]
    assert texts == sorted(texts, reverse=True)
    assert texts[0] > 0.9
    assert all(row.found > 0.9 for row in rows() if row.attack.startswith(("inversion", "least squares")))
