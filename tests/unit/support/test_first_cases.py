"""The mark `first_case`: each case of a test runs in `make test` or in `make test-slow`, and none in both."""

import pytest

pytest_plugins = ("pytester",)
TESTS = """
import pytest

@pytest.mark.first_case
@pytest.mark.parametrize("case", [pytest.param(0, marks=pytest.mark.full), 1, 2, 3])
def test_marked(case): ...

@pytest.mark.parametrize("case", [0, 1])
def test_other(case): ...
"""


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("not slow and not full", ["test_marked[1]", "test_other[0]", "test_other[1]"]),
        ("slow and not full", ["test_marked[2]", "test_marked[3]"]),
        ("full", ["test_marked[0]"]),
    ],
)
def test_the_first_quick_case_is_quick_and_the_others_are_slow(pytester, chosen, expected):
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems  # noqa: F401")
    pytester.makeini("[pytest]\nmarkers =\n  slow\n  full\n  first_case\nasyncio_default_fixture_loop_scope = function")
    file = pytester.makepyfile(TESTS)
    collected = pytester.runpytest_inprocess(file, "--collect-only", "-q", "-m", chosen)
    assert [line.rpartition("::")[2] for line in collected.outlines if "::" in line] == expected
