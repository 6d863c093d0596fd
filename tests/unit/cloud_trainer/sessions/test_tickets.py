"""A ticket opens the one link that it was issued for, once, and only while that link is wanted."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cloud_trainer.sessions.tickets import Tickets
from shared.transport.auth.callers import BlockOffer, PeerLink
from tests.support.examples import examples

WORKERS = ["near", "far", "farthest"]
LINKS = st.builds(
    PeerLink,
    st.sampled_from(["one", "another"]),
    st.integers(1, 3),
    st.sampled_from(WORKERS),
    st.integers(0, 2),
)


def issued(link: PeerLink) -> tuple[Tickets, str]:
    """Return the tickets of a session, and one of them, for this link."""
    tickets = Tickets(link.session_id)
    return tickets, tickets.issue(link.session_term, [link.worker], link.evaluation)[link.worker]


def used(tickets: Tickets, ticket: str, link: PeerLink) -> str | None:
    """Dial a link with a ticket, and return the result."""
    shown = tickets.find(ticket)
    return None if shown is None else tickets.take(shown, link)


@given(LINKS, LINKS)
def test_a_ticket_opens_the_link_that_it_is_for_and_no_other(link, wanted):
    tickets, ticket = issued(link)
    assert (used(tickets, ticket, wanted) is not None) == (wanted == link)
    assert (used(tickets, ticket, link) is not None) == (wanted != link), "what was refused has used nothing up"


@given(LINKS, st.integers(1, 5))
def test_each_use_gives_one_more_and_none_can_be_used_twice(link, times):
    tickets, ticket = issued(link)
    for _ in range(times):
        following = used(tickets, ticket, link)
        assert following is not None
        assert used(tickets, ticket, link) is None
        ticket = following
    assert len(tickets) == 1


@given(LINKS)
def test_of_two_calls_that_show_a_ticket_at_once_one_opens_the_link(link):
    tickets, ticket = issued(link)
    first, second = tickets.find(ticket), tickets.find(ticket)
    assert first is not None
    assert second is not None
    assert tickets.take(first, link) is not None
    assert tickets.take(second, link) is None


@pytest.mark.slow
@given(LINKS, st.text(max_size=60))
def test_nothing_but_a_ticket_is_one(link, text):
    tickets, ticket = issued(link)
    assert tickets.find(text) is None
    assert ticket not in repr(vars(tickets)), "only its hash is kept"
    assert ticket not in repr(tickets.find(ticket))


BLOCKS = st.sets(st.integers(0, 9), min_size=1)


@given(BLOCKS, st.integers(1, 5))
def test_a_ticket_for_blocks_is_for_these_of_this_session_as_often_as_wanted(blocks, times):
    tickets = Tickets("one")
    ticket = tickets.offer("near", blocks)
    for _ in range(times):
        assert tickets.find_offer(ticket) == BlockOffer("one", "near", frozenset(blocks))
    assert Tickets("another").find_offer(ticket) is None
    assert ticket not in repr(vars(tickets)), "only its hash is kept"


@given(st.lists(st.tuples(st.sampled_from(WORKERS), BLOCKS), min_size=1, max_size=8))
def test_each_worker_is_offered_what_it_was_offered_last(offers):
    tickets = Tickets("one")
    issued = [(tickets.offer(worker, blocks), worker, blocks) for worker, blocks in offers]
    last = {worker: ticket for ticket, worker, _ in issued}
    for ticket, worker, blocks in issued:
        expected = BlockOffer("one", worker, frozenset(blocks)) if last[worker] == ticket else None
        assert tickets.find_offer(ticket) == expected
    assert len(tickets) == len(last)
    tickets.withdraw_offers()
    assert all(tickets.find_offer(ticket) is None for ticket, _, _ in issued)


@given(LINKS, BLOCKS)
def test_a_ticket_for_a_link_gives_no_blocks_and_one_for_blocks_opens_no_link(link, blocks):
    tickets, of_link = issued(link)
    of_blocks = tickets.offer(link.worker, blocks)
    assert tickets.find_offer(of_link) is None
    assert tickets.find(of_blocks) is None
    tickets.withdraw(link.evaluation)
    assert tickets.find_offer(of_blocks) is not None
    tickets.withdraw_offers()
    assert len(tickets) == 0


class Issuing(RuleBasedStateMachine):
    """An agent that joins, places and evaluates in any order. `valid` holds the tickets that must open a link."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets = Tickets("one")
        self.term = 0
        self.valid: dict[PeerLink, str] = {}
        self.void: list[tuple[str, PeerLink]] = []

    def _keep(self, keep: Any) -> None:
        self.void += [(ticket, link) for link, ticket in self.valid.items() if not keep(link)]
        self.valid = {link: ticket for link, ticket in self.valid.items() if keep(link)}

    @rule(term=st.integers(0, 1), evaluation=st.integers(0, 2), workers=st.sets(st.sampled_from(WORKERS)))
    def issue(self, term: int, evaluation: int, workers: set[str]) -> None:
        self.term += term
        self._keep(lambda link: link.session_term == self.term and link.evaluation != evaluation)
        issued = self.tickets.issue(self.term, workers, evaluation)
        assert issued.keys() == workers
        self.valid |= {PeerLink("one", self.term, worker, evaluation): ticket for worker, ticket in issued.items()}

    @rule(evaluation=st.integers(0, 2))
    def withdraw(self, evaluation: int) -> None:
        self.tickets.withdraw(evaluation)
        self._keep(lambda link: link.evaluation != evaluation)

    @precondition(lambda self: self.valid)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted(self.valid)))
        following = used(self.tickets, self.valid[link], link)
        assert following is not None
        self.void.append((self.valid[link], link))
        self.valid[link] = following

    @invariant()
    def what_is_void_opens_nothing(self) -> None:
        assert all(used(self.tickets, ticket, link) is None for ticket, link in self.void)

    @invariant()
    def there_is_one_for_each_link_at_most(self) -> None:
        assert len(self.tickets) == len(self.valid)
        for link, ticket in self.valid.items():
            shown = self.tickets.find(ticket)
            assert shown is not None
            assert shown.link == link


Issuing.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
TestIssuing = Issuing.TestCase
