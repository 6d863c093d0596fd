"""Features that are kept where they come: what is kept comes back, and nothing is kept that does not belong there."""

import errno
import os

import pytest
import torch

from shared.errors import ProtocolError, StorageError
from shared.execution.recalled import Recalled, record_bytes
from shared.model.spec import TensorSpec

SPECS = (TensorSpec((4, 3, 2), torch.float32), TensorSpec((4, 5), torch.int64), TensorSpec((4, 1), torch.bool))
SLOTS = (0, 2)
SAMPLES, LABEL_BYTES = 6, 8
FEATURES = torch.randn(SAMPLES, 3, 2, generator=torch.Generator().manual_seed(2))
FLAGS = torch.arange(SAMPLES).remainder(2).bool().view(SAMPLES, 1)
LABELS = torch.arange(SAMPLES, dtype=torch.int8)


def kept(folder):
    return Recalled(folder, SAMPLES, SPECS, SLOTS, LABEL_BYTES)


def numbers(*given):
    return torch.tensor(given, dtype=torch.int32)


def of(*given):
    rows = list(given)
    return (FEATURES[rows], None, FLAGS[rows]), (LABELS[rows],)


def test_what_has_come_once_comes_back_whatever_the_batch(tmp_path):
    recalled = kept(tmp_path)
    for batch, fresh in [((4, 1), (4, 1)), ((1, 5, 4), (5,)), ((5, 4, 1), ()), ((0, 3, 2, 4), (0, 3, 2))]:
        features, labels = recalled.take(numbers(*batch), *of(*fresh))
        rows = list(batch)
        assert torch.equal(features[0], FEATURES[rows])
        assert features[1] is None
        assert torch.equal(features[2], FLAGS[rows])
        assert labels[0].dtype is torch.int64
        assert labels[0].tolist() == rows
    assert recalled.bytes == SAMPLES * record_bytes(SPECS, SLOTS, LABEL_BYTES) == SAMPLES * (24 + 1 + 8)
    assert [(path.stat().st_size, path.stat().st_mode & 0o777) for path in tmp_path.iterdir()] == [
        (recalled.bytes, 0o600)
    ]


def test_nothing_is_on_the_disk_before_anything_has_come_and_another_begins_anew(tmp_path):
    folder = tmp_path / "recalled"
    first, second = kept(folder), kept(folder)
    assert not folder.exists()
    first.take(numbers(0), *of(0))
    second.take(numbers(0), *of(0))
    assert len(list(folder.iterdir())) == 1
    first.take(numbers(0), *of())


@pytest.mark.parametrize(
    ("batch", "given", "sentence"),
    [
        ((6,), (0,), "none of the 6"),
        ((-1,), (0,), "none of the 6"),
        ((1, 2), (1,), "than the 2 of the batch"),
        ((1,), (1, 2), "than the 1 of the batch"),
        ((0,), (0,), "than the 0 of the batch"),
    ],
)
def test_samples_that_cannot_be_are_refused_and_nothing_of_them_is_kept(tmp_path, batch, given, sentence):
    recalled = kept(tmp_path)
    recalled.take(numbers(0), *of(0))
    with pytest.raises(ProtocolError, match=sentence):
        recalled.take(numbers(*batch), *of(*given))
    assert recalled.take(numbers(0), *of())[1][0].tolist() == [0]
    recalled.take(numbers(1), *of(1))


def test_labels_of_another_kind_are_refused(tmp_path):
    recalled = kept(tmp_path)
    with pytest.raises(ProtocolError, match="labels of 16 bytes a sample came; 8 were said"):
        recalled.take(numbers(0), of(0)[0], (torch.zeros(1, 2),) * 2)
    assert not list(tmp_path.iterdir()), "no byte was kept"
    recalled.take(numbers(0), *of(0))
    with pytest.raises(ProtocolError, match="another shape or type"):
        recalled.take(numbers(1), of(1)[0], (torch.zeros(1, 2),))


def test_a_full_disk_is_said_and_left_as_it_was(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"cannot take the 198 bytes .* No space left"):
        kept(tmp_path).take(numbers(0), *of(0))
    assert not list(tmp_path.iterdir())
