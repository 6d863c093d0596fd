"""An unfinished profile: it is continued or measured again, whatever its file holds."""

import json

import pytest
from structlog.testing import capture_logs

from edge_agent.profiling.calibration_trainings import Training, Trainings
from edge_agent.profiling.profile_parts import PartFile
from shared.errors import StorageError

DONE = Trainings(of="settings", done=(Training(cut=1, staleness=2, bits=8, seed=0, share=0.5, value=0.75),))


def loaded(path, of="settings"):
    with capture_logs() as logs:
        parts = PartFile(path, Trainings).load(of)
    return parts, [entry["event"] for entry in logs]


def test_saved_parts_are_continued_until_they_are_removed(tmp_path):
    path = tmp_path / "new" / "profile.json.parts"
    assert loaded(path) == (Trainings(of="settings"), [])
    PartFile(path, Trainings).save(DONE)
    assert loaded(path) == (DONE, [])
    PartFile(path, Trainings).remove()
    assert loaded(path) == (Trainings(of="settings"), [])


def test_parts_of_other_settings_are_measured_again_with_a_warning(tmp_path):
    path = tmp_path / "profile.json.parts"
    PartFile(path, Trainings).save(DONE)
    assert loaded(path, "others") == (
        Trainings(of="others"),
        ["the stored parts of the profile have other settings; measuring again"],
    )


GOOD = json.loads(DONE.model_dump_json(exclude_none=True))
(TRAINING,) = GOOD["done"]


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
        json.dumps(GOOD | {"done": None}).encode(),
        json.dumps(GOOD | {"done": {"1": 2}}).encode(),
        json.dumps({"done": []}).encode(),
        *(json.dumps(GOOD | {"done": [one]}).encode() for one in (None, 7, {})),
        *(
            json.dumps(GOOD | {"done": [TRAINING | wrong]}).encode()
            for wrong in (
                {"cut": "first"},
                {"share": -0.5},
                {"accuracy": float("nan")},
                {"accuracy": 1.5},
                {"unknown": 3},
            )
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_measured_again_with_a_warning(tmp_path, damaged):
    path = tmp_path / "profile.json.parts"
    path.write_bytes(damaged)
    assert loaded(path) == (
        Trainings(of="settings"),
        ["the stored parts of the profile are damaged; measuring again"],
    )


def test_a_file_that_cannot_be_read_or_written_is_an_error_in_words(tmp_path):
    path = tmp_path / "profile.json.parts"
    path.mkdir()
    with pytest.raises(StorageError, match=r"profile\.json\.parts cannot be read"):
        PartFile(path, Trainings).load("settings")
    with pytest.raises(StorageError, match=r"profile\.json\.parts cannot be written"):
        PartFile(path, Trainings).save(DONE)
