"""Random state derived from the thing that it belongs to."""

import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from shared.model.random_state import derive_seed, random_state

PARTS = st.lists(st.one_of(st.integers(), st.text(max_size=8)), max_size=4)


@given(PARTS)
def test_a_seed_has_63_bits_and_is_the_same_each_time(parts):
    assert 0 <= derive_seed(*parts) < 2**63
    assert derive_seed(*parts) == derive_seed(*parts)


@given(PARTS, PARTS)
def test_other_parts_give_another_seed(one, other):
    same = [(type(part), part) for part in one] == [(type(part), part) for part in other]
    assert (derive_seed(*one) == derive_seed(*other)) == same


def test_seeds_are_the_same_on_every_machine():
    assert derive_seed(0, 1, 2) == 7778172559466378555
    assert derive_seed("weights", 7) == 4384323880056307577


def test_parts_are_told_apart_by_kind_and_length():
    seeds = [derive_seed(*parts) for parts in (("ab",), ("a", "b"), (1,), ("1",), (12,), (1, 2), (-1,))]
    assert len(set(seeds)) == len(seeds)


@given(PARTS, st.integers(0, 2**63 - 1))
def test_the_default_generator_is_seeded_inside_and_put_back_outside(parts, outer_seed):
    torch.manual_seed(outer_seed)
    before = torch.get_rng_state()
    with random_state(*parts):
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    with random_state(*parts):
        assert torch.equal(torch.rand(4), first)


def draw_and_fail() -> None:
    torch.rand(1)
    raise ArithmeticError


def test_the_state_is_put_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(ArithmeticError), random_state(1):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_one_thread_may_nest():
    with random_state(1):
        expected = torch.rand(2)
    with random_state(1):
        with random_state(2):
            torch.rand(5)
        assert torch.equal(torch.rand(2), expected)


def test_threads_do_not_disturb_each_other():
    ones = torch.ones(1000)

    def masks(thread: int) -> list[torch.Tensor]:
        found = []
        for step in range(20):
            with random_state(thread, step):
                found.append(torch.cat([F.dropout(ones) for _ in range(5)]))
        return found

    expected = [masks(thread) for thread in range(4)]
    results: dict[int, list[torch.Tensor]] = {}
    start = threading.Barrier(4)

    def run(thread: int) -> None:
        start.wait()
        results[thread] = masks(thread)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in range(4):
        assert all(map(torch.equal, results[thread], expected[thread]))
