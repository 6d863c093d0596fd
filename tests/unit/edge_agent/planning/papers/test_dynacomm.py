"""DynaComm finds the best partition: what trying all of them finds, and what the programs of paper 002 find."""

import random
from functools import cache
from itertools import accumulate

import numpy as np
import pytest

from edge_agent.planning.schedules import STRATEGIES, Direction, dynacomm
from tests.support.planning.schedules import drawn_seconds, layers

MOST_LAYERS = 12
DEEP = 152


@cache
def all_ends(count: int) -> np.ndarray:
    """Every partition of so many layers: whether a segment ends behind each. Shape (2^(count - 1), count)."""
    numbers = np.arange(2 ** (count - 1))
    ends = (numbers[:, None] >> np.arange(count - 1)) & 1
    return np.concatenate([ends.astype(bool), np.ones((len(ends), 1), dtype=bool)], axis=1)


def exhaustive_forward(pulls, computing, message) -> float:
    """The least seconds of a forward pass, played for every partition."""
    ends = all_ends(len(pulls))
    arrived, done = np.zeros(len(ends)), np.zeros(len(ends))
    bytes_waiting, computing_waiting = np.zeros(len(ends)), np.zeros(len(ends))
    for layer, end in enumerate(ends.T):
        bytes_waiting += pulls[layer]
        computing_waiting += computing[layer]
        arrived = np.where(end, arrived + message + bytes_waiting, arrived)
        done = np.where(end, np.maximum(done, arrived) + computing_waiting, done)
        bytes_waiting[end] = computing_waiting[end] = 0.0
    return float(done.min())


def exhaustive_backward(pushes, computing, message) -> float:
    """The least seconds of a backward pass, played for every partition."""
    ends = all_ends(len(pushes))
    computed, sent, waiting = 0.0, np.zeros(len(ends)), np.zeros(len(ends))
    for place, end in enumerate(ends.T):
        layer = len(pushes) - 1 - place
        computed += computing[layer]
        waiting += pushes[layer]
        sent = np.where(end, np.maximum(sent, computed) + message + waiting, sent)
        waiting[end] = 0.0
    return float(sent.min())


def check_cases(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        transfers, computing, message = drawn_seconds(draw, draw.randint(1, MOST_LAYERS))
        direction = Direction.of(transfers, computing, message)
        found = direction.seconds(dynacomm(direction))
        assert found == pytest.approx(exhaustive_forward(transfers, computing, message), rel=1e-12, abs=1e-12)
        assert found == pytest.approx(exhaustive_backward(transfers, computing, message), rel=1e-12, abs=1e-12)


def test_no_partition_is_better_in_either_direction():
    check_cases(seed=0, cases=300)


@pytest.mark.slow
def test_no_partition_is_better_in_ten_thousand_cases():
    check_cases(seed=1, cases=10_000)


def test_among_the_best_partitions_it_takes_one_of_the_fewest_messages():
    draw = random.Random(2)
    for _ in range(100):
        transfers, computing = ([draw.randint(0, 3) for _ in range(6)] for _ in range(2))
        direction = Direction.of(transfers, computing, draw.choice((0.0, 1.0)))
        chosen = dynacomm(direction)
        for ends in all_ends(6):
            bounds = (0, *(np.flatnonzero(ends) + 1).tolist())
            if len(bounds) < len(chosen):
                assert direction.exposed_seconds(bounds) > direction.exposed_seconds(chosen)


def literal_forward(pt: list[float], fc: list[float], message: float) -> float:
    """Alg. 3 of paper 002 as it stands there: the seconds of the best forward pass."""
    count = len(pt)
    pulled, computed = list(accumulate(pt, initial=0.0)), list(accumulate(fc, initial=0.0))
    infinite = float("inf")
    best = [[infinite] * (count + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for m in range(1, count + 1):
        for n in range(1, m + 1):
            for k in range(m):
                start = max(best[k][n - 1], n * message + pulled[m])
                best[m][n] = min(best[m][n], start + computed[m] - computed[k])
    return min(best[count][1:])


def literal_backward(bc: list[float], gt: list[float], message: float) -> float:
    """Alg. 4 of paper 002, whose lines 23 and 26 read B: the seconds of the best backward pass."""
    count = len(bc)
    computed, pushed = list(accumulate(reversed(bc), initial=0.0)), list(accumulate(reversed(gt), initial=0.0))
    infinite = float("inf")
    best = [[infinite] * (count + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for m in range(1, count + 1):
        for n in range(1, m + 1):
            for k in range(m):
                start = max(best[k][n - 1], computed[m])
                best[m][n] = min(best[m][n], start + message + pushed[m] - pushed[k])
    return min(best[count][1:])


@pytest.mark.first_case
@pytest.mark.parametrize("message", [0.0, 0.014])
def test_it_equals_the_programs_of_the_paper_where_layers_are_many(message):
    draw = random.Random(3)
    pulls, forwards, backwards, pushes = ([draw.random() ** 4 / 20 for _ in range(DEEP)] for _ in range(4))
    schedule = STRATEGIES["dynacomm"](layers(pulls, forwards, backwards, pushes, message_seconds=message))
    assert schedule.forward_seconds == pytest.approx(literal_forward(pulls, forwards, message), rel=1e-12)
    assert schedule.backward_seconds == pytest.approx(literal_backward(backwards, pushes, message), rel=1e-12)
