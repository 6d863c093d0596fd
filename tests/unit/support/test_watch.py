"""The choice of `make watch`: the unit tests that mirror a change, and each of them once."""

from pathlib import Path

import pytest

from tests.watch import unit_tests_of


@pytest.fixture
def root(tmp_path):
    for name in ("shared/codec/test_uniform.py", "shared/test_factory.py", "docs/test_site.py"):
        path = tmp_path / "tests" / "unit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["shared/codec/uniform.py"], ["shared/codec"]),
        (["shared/files/whole_file.py"], ["shared"]),
        (["shared/factory.py"], ["shared"]),
        (["docs/metrics.md"], ["docs"]),
        (["tests/unit/docs/test_site.py"], ["docs/test_site.py"]),
        (["tests/unit/docs/test_site.py", "docs/metrics.md"], ["docs"]),
        (["tests/unit/docs/test_gone.py"], []),
        (["deploy/demo/pace.py"], []),
    ],
)
def test_the_tests_of_a_change_are_the_nearest_ones_that_mirror_it(root, changed, tests):
    assert unit_tests_of(map(Path, changed), root) == [Path("tests/unit") / name for name in tests]
