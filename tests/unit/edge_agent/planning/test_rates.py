"""Rates as people write them."""

import pytest

from edge_agent.planning import parse_rate
from shared.errors import PlanError


@pytest.mark.parametrize(
    ("text", "bits_per_second"),
    [
        ("10mbit", 10e6),
        ("1.5gbit", 1.5e9),
        ("800kbit", 800e3),
        ("1bit", 1.0),
        ("2mbyte", 16e6),
        ("10Mbit", 10e6),
        (" 10 mbit/s ", 10e6),
        ("0.5kbit", 500.0),
        (".5kbit", 500.0),
    ],
)
def test_a_rate_is_decimal(text, bits_per_second):
    assert parse_rate(text) == bits_per_second


@pytest.mark.parametrize(
    "text",
    [
        *("", "10", "mbit", "-1mbit", "0mbit", "0.0001bit", "nanmbit", "infmbit", "1e3mbit", "10mibit", "10mbps"),
        *("1,5mbit", "10 mbit up", "9" * 400 + "gbit", "١mbit", "10\x00mbit"),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(PlanError, match=r"^--uplink is "):
        parse_rate(text, "--uplink")
