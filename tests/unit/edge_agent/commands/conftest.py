"""A profile as the commands of planning take it."""

import pytest

from shared.planning import profile_to_json
from tests.support.planning.cases import small_profile


@pytest.fixture
def profile_path(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(small_profile()))
    return path
