"""An unfinished profile: it is continued or measured again, whatever its file holds."""

import json

import pytest
from structlog.testing import capture_logs

from edge_agent.profiling.profile_parts import MeasuredCut, Measurements, PartFile
from shared.errors import StorageError

DONE = Measurements(
    of="settings",
    cuts={"1": MeasuredCut(edge=(0.5, 1.0), serial=(0.5,), cloud=(0.25, 0.0)), "2": MeasuredCut(skipped="too large")},
)


def loaded(path, of="settings"):
    with capture_logs() as logs:
        parts = PartFile(path, Measurements).load(of)
    return parts, [entry["event"] for entry in logs]


def test_saved_parts_are_continued_until_they_are_removed(tmp_path):
    path = tmp_path / "new" / "profile.json.parts"
    assert loaded(path) == (Measurements(of="settings"), [])
    PartFile(path, Measurements).save(DONE)
    assert loaded(path) == (DONE, [])
    PartFile(path, Measurements).remove()
    assert loaded(path) == (Measurements(of="settings"), [])


def test_parts_of_other_settings_are_measured_again_with_a_warning(tmp_path):
    path = tmp_path / "profile.json.parts"
    PartFile(path, Measurements).save(DONE)
    assert loaded(path, "others") == (
        Measurements(of="others"),
        ["the stored parts of the profile have other settings; measuring again"],
    )


GOOD = json.loads(DONE.model_dump_json(exclude_none=True))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[1, 2]",
        b'"settings"',
        b"[" * 1000,
        json.dumps(GOOD | {"cuts": None}).encode(),
        json.dumps(GOOD | {"cuts": [1, 2]}).encode(),
        json.dumps({"cuts": {}}).encode(),
        *(
            json.dumps(GOOD | {"cuts": {"1": cut}}).encode()
            for cut in (
                None,
                7,
                {},
                {"edge": [0.5], "serial": [0.5]},
                {"edge": [], "serial": [0.5], "cloud": [0.5]},
                {"edge": ["fast"], "serial": [0.5], "cloud": [0.5]},
                {"edge": [-0.5], "serial": [0.5], "cloud": [0.5]},
                {"edge": [float("nan")], "serial": [0.5], "cloud": [0.5]},
                {"edge": 0.5, "serial": [0.5], "cloud": [0.5]},
                {"skipped": 3},
            )
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_measured_again_with_a_warning(tmp_path, damaged):
    path = tmp_path / "profile.json.parts"
    path.write_bytes(damaged)
    assert loaded(path) == (
        Measurements(of="settings"),
        ["the stored parts of the profile are damaged; measuring again"],
    )


def test_a_file_that_cannot_be_read_or_written_is_an_error_in_words(tmp_path):
    path = tmp_path / "profile.json.parts"
    path.mkdir()
    with pytest.raises(StorageError, match=r"profile\.json\.parts cannot be read"):
        PartFile(path, Measurements).load("settings")
    with pytest.raises(StorageError, match=r"profile\.json\.parts cannot be written"):
        PartFile(path, Measurements).save(DONE)
