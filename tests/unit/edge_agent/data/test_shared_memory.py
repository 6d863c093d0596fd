"""Room in /dev/shm: what processes that load need of it, and how its lack is told."""

import pytest

from edge_agent.data.shared_memory import check_shared_memory, is_lack_of_room
from shared.errors import DataError

MIB = 1024**2


def test_batches_that_are_read_ahead_need_room():
    check_shared_memory(2, 16 * MIB, 64 * MIB)
    check_shared_memory(0, 16 * MIB, 0)
    with pytest.raises(DataError, match=r"take 100\.7 MB of /dev/shm, which has 67\.1 MB left; .*--shm-size"):
        check_shared_memory(3, 16 * MIB, 64 * MIB)


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        (
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that ... out of shared memory.",
            True,
        ),
        ("unable to write to file </torch_9_1_0>: No space left on device (28)", True),
        ("DataLoader worker (pid 7) is killed by signal: Killed.", False),
    ],
)
def test_torchs_words_for_it_are_known(said, lacks):
    assert is_lack_of_room(said) is lacks
