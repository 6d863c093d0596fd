"""The window of a run: what may be in flight, what is taken from a trainer, and what is sent again after a lost link."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge_agent.training.window import AHEAD_WITHOUT_K, Window
from shared.codec import codec_by_name, codec_names
from shared.errors import ProtocolError
from shared.tensor_wire import to_wire
from shared.transport.stream.framing import TensorKey, chunks
from shared.wire.isthmus.v1.tensor_pb2 import DataType, Frame, Role, TensorHeader
from shared.wire.isthmus.v1.trainer_pb2 import Deployment

FEATURE, INTEGERS = torch.zeros(4, 3), torch.zeros(4, 2, dtype=torch.int64)
BOUNDARIES = ((FEATURE,), (FEATURE, FEATURE), (INTEGERS, FEATURE, INTEGERS, FEATURE))
LABELS = torch.zeros(4, dtype=torch.int64)
VERSION, CUT = 2, 1
DEPLOYMENT = Deployment(version=VERSION, cut=CUT, downlink_codec="fp32")


def gradient(
    step: int, role: Role = Role.ROLE_ERROR_GRADIENT, version: int = VERSION, slot: int = 0, **header
) -> Frame:
    announced = {"codec": "fp32", "dtype": DataType.DATA_TYPE_FLOAT32, "shape": [4, 3], "strides": [3, 1]}
    announced |= {"encoded_bytes": 48, **header}
    tensor = TensorHeader(**announced)
    return Frame(role=role, step=step, block=CUT, slot=slot, deployment_version=version, tensor=tensor)


def window_of(steps: range, *, gradients_return: bool = True, forwarded: bool = True) -> Window:
    """These steps have started, and nothing has come of them."""
    window = Window(steps.start)
    window.begin(gradients_return=gradients_return)
    for _ in steps:
        batch = window.start(DEPLOYMENT, LABELS)
        if forwarded:
            window.note_forwarded(batch, (FEATURE,), 0.1)
    return window


class EdgeAndTrainer(RuleBasedStateMachine):
    """A trainer that does what it should, over a link that may be lost at any time, and an edge that follows its window."""

    @initialize(
        first=st.integers(2, 1000),
        limit=st.integers(0, 6),
        gradients_return=st.booleans(),
        features=st.sampled_from(BOUNDARIES),
    )
    def begin(self, first, limit, gradients_return, features):
        self.features = features
        self.slots = [slot for slot, feature in enumerate(features) if feature is FEATURE]
        self.delivered = 0
        """Gradients of the step `gradients` that this stream has delivered."""
        self.window, self.limit, self.gradients_return, self.first = Window(first), limit, gradients_return, first
        self.window.begin(gradients_return=gradients_return)
        self.computed = self.arrived = first
        """Steps that the trainer has computed, and whose labels and feature have arrived there on this stream."""
        self.gradients, self.reports = first, first
        """The next that this stream delivers."""
        self.settled, self.position, self.started = [], self.window.position, []

    @precondition(lambda self: self.window.may_start(self.limit) and self.window.forwarded == self.window.started)
    @rule()
    def start(self):
        self.batch = self.window.start(DEPLOYMENT, LABELS)
        self.started.append(self.batch.step)

    @precondition(lambda self: self.window.forwarded < self.window.started)
    @rule()
    def forward(self):
        self.window.note_forwarded(self.batch, self.features, 0.1)

    @precondition(lambda self: self.window.features_to_send)
    @rule()
    def send(self):
        assert self.window.next_to_send().step == self.arrived, "the trainer gets every step once, in order"
        self.window.note_sent()
        self.arrived += 1

    @precondition(lambda self: self.computed < self.arrived)
    @rule()
    def compute(self):
        self.computed += 1

    @precondition(lambda self: self.gradients_return and self.gradients < self.computed)
    @rule()
    def deliver_gradient(self):
        slot = self.slots[self.delivered]
        self.window.accept(gradient(self.gradients, slot=slot))
        self.window.take_gradient(self.gradients, slot, FEATURE)
        self.delivered += 1
        if self.delivered == len(self.slots):
            self.gradients, self.delivered = self.gradients + 1, 0

    @precondition(lambda self: self.reports < self.computed)
    @rule()
    def deliver_report(self):
        assert self.window.take_report(self.reports).step == self.reports
        if not self.gradients_return:
            self.settled.append(self.reports)
            self.window.settle(self.reports)
        self.reports += 1

    @precondition(lambda self: self.window.next_to_apply() is not None)
    @rule()
    def apply(self):
        batch = self.window.next_to_apply()
        assert list(batch.gradients) == self.slots
        self.settled.append(batch.step)
        assert 0 <= self.window.settle(batch.step) <= self.limit

    @precondition(lambda self: self.gradients_return and self.gradients < self.computed)
    @rule()
    def lose_a_link_in_the_middle_of_a_gradient(self):
        self.window.accept(gradient(self.gradients, slot=self.slots[self.delivered]))
        self.lose_the_link()

    @rule()
    def lose_the_link(self):
        """What had arrived and was not computed is lost with it; what the edge lacks is sent again."""
        position = self.window.position
        self.arrived = self.computed
        self.reports, self.delivered = position.report_step, 0
        if self.gradients_return:
            self.gradients = position.gradient_step
        assert (
            max(self.reports, self.gradients if self.gradients_return else 0) <= self.computed <= position.forward_step
        )
        self.window.resume(self.computed)

    @rule(wrong=st.integers(-2, 2))
    def refuse_what_is_not_due(self, wrong):
        before = self.window.position
        if wrong and self.gradients_return:
            with pytest.raises(ProtocolError):
                self.window.accept(gradient(self.gradients + wrong, slot=self.slots[self.delivered]))
            with pytest.raises(ProtocolError):
                self.window.accept(gradient(self.gradients, slot=self.slots[self.delivered] + abs(wrong)))
        if wrong:
            with pytest.raises(ProtocolError):
                self.window.take_report(self.reports + wrong)
        assert self.window.position == before

    @invariant()
    def bounded_and_in_order(self):
        window = self.window
        assert 0 <= window.in_flight <= (self.limit if self.gradients_return else AHEAD_WITHOUT_K) + 1
        assert self.settled == list(range(self.first, window.settled)), "each once, in order"
        assert self.started == list(range(self.first, window.started))
        assert all(now >= before for now, before in zip(window.position, self.position, strict=True)), "never back"
        self.position = window.position
        owed = min(
            window.position.report_step,
            window.position.gradient_step if self.gradients_return else window.position.report_step,
        )
        assert window.owed() == (owed if owed < window.forwarded else None)

    def teardown(self):
        if not hasattr(self, "window"):
            return
        self.window.abandon()
        assert (self.window.in_flight, self.window.features_to_send, self.window.gradients_to_apply) == (0, 0, 0)
        assert self.window.next_to_send() is None, "a failed run leaves nothing behind"
        assert set(self.window.position) == {self.window.started}


TestEdgeAndTrainer = EdgeAndTrainer.TestCase
TestEdgeAndTrainer.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@given(st.integers(0, 8))
def test_the_limit_is_reached(limit):
    """As late as allowed when the pipeline is kept full: a rule that allowed less would waste the link."""
    window = window_of(range(0))
    for step in range(limit + 1):
        assert window.may_start(limit)
        window.note_forwarded(window.start(DEPLOYMENT, LABELS), (FEATURE,), 0.1)
        assert window.in_flight == step + 1
    assert not window.may_start(limit)
    window.accept(gradient(0))
    window.take_gradient(0, 0, FEATURE)
    assert window.settle(0) == limit


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=200))
def test_a_limit_that_changes_holds_for_every_step_that_starts_under_it(choices):
    window, limit_of = window_of(range(0)), {}
    for start, limit in choices:
        if start and window.may_start(limit):
            batch = window.start(DEPLOYMENT, LABELS)
            limit_of[batch.step] = limit
            assert window.in_flight <= limit + 1
        elif window.in_flight:
            assert window.settle(window.settled) <= limit_of[window.started - 1]


@given(st.integers(0, 5), st.integers(-1, 7))
def test_steps_are_settled_in_order_and_only_when_in_flight(in_flight, step):
    window = window_of(range(in_flight))
    if step == 0 < in_flight:
        window.settle(step)
    else:
        with pytest.raises(AssertionError):
            window.settle(step)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4).flatmap(
        lambda sizes: st.permutations([*sizes, 3000]).map(tuple)
    ),
    st.sampled_from(codec_names()),
    st.booleans(),
)
def test_a_gradient_of_any_shape_and_codec_is_taken(shape, codec, channels_last):
    """Even where the ranges of the codec's channels are more than the values are."""
    window, right = window_of(range(5, 5)), torch.zeros(shape)
    if channels_last and right.dim() == 4:
        right = right.to(memory_format=torch.channels_last)
    batch = window.start(Deployment(version=VERSION, cut=CUT, downlink_codec=codec), torch.zeros(shape[0]))
    window.note_forwarded(batch, (right,), 0.1)
    tensor = to_wire(codec_by_name(codec).encode(right), TensorKey(5, Role.ROLE_ERROR_GRADIENT, CUT), VERSION)
    window.accept(next(chunks(tensor, 1 << 20))[0])
    window.take_gradient(5, 0, right)
    assert window.next_to_apply() is batch


REFUSALS = [
    (gradient(6), r"the error gradient of step 6 \(block 1\) came where the error gradient of step 5 .* was expected"),
    (gradient(4), r"the error gradient of step 4 \(block 1\) came where the error gradient of step 5 .* was expected"),
    (
        gradient(5, role=Role.ROLE_FEATURE),
        r"the feature of step 5 \(block 1\) came where the error gradient of step 5 .* was expected",
    ),
    (gradient(5, role=77), "tensor of unknown role 77"),
    (gradient(5, version=3), "came under deployment 3; .* under deployment 2 was expected"),
    (
        gradient(5, shape=[4, 4], strides=[4, 1], encoded_bytes=64),
        r"float32 \(4, 4\); torch.float32 \(4, 3\) was expected",
    ),
    (gradient(5, dtype=DataType.DATA_TYPE_FLOAT64), r"float64 \(4, 3\); torch.float32 \(4, 3\) was expected"),
    (gradient(5, codec="fp16"), "encoded as 'fp16'; 'fp32' is agreed"),
    (gradient(5, encoded_bytes=44), "announces 44 bytes; fp32 of .* has 48"),
]


@pytest.mark.parametrize(("field", "other"), [("block", 0), ("block", 2), ("slot", 1), ("part", 1), ("batch", 1)])
def test_a_gradient_of_another_crossing_is_refused(field, other):
    window, frame = window_of(range(5, 8)), gradient(5)
    setattr(frame, field, other)
    with pytest.raises(ProtocolError, match=r"came where the error gradient of step 5 \(block 1\) was expected"):
        window.accept(frame)
    window.accept(gradient(5))


@pytest.mark.parametrize(("frame", "sentence"), REFUSALS)
def test_what_is_not_the_gradient_that_is_due_is_refused(frame, sentence):
    window = window_of(range(5, 8))
    with pytest.raises(ProtocolError, match=sentence):
        window.accept(frame)
    window.accept(gradient(5))


def test_a_gradient_that_comes_twice_is_refused():
    window = window_of(range(5, 6))
    window.accept(gradient(5))
    with pytest.raises(ProtocolError, match="nothing was expected"):
        window.accept(gradient(5))


def test_a_gradient_of_what_is_not_forwarded_is_refused():
    with pytest.raises(ProtocolError, match="nothing was expected"):
        window_of(range(5, 6), forwarded=False).accept(gradient(5))


def test_a_gradient_that_is_whole_out_of_turn_is_refused():
    window = window_of(range(5, 7))
    window.accept(gradient(5))
    window.accept(gradient(6))
    with pytest.raises(ProtocolError, match="gradient of step 6 is whole where that of step 5 was expected"):
        window.take_gradient(6, 0, FEATURE)


def test_a_report_that_comes_twice_is_refused():
    window = window_of(range(5, 7))
    window.take_report(5)
    with pytest.raises(ProtocolError, match="reports step 5; the report of step 6 is expected"):
        window.take_report(5)


def test_where_no_gradient_comes_reports_come_in_order():
    window = window_of(range(5, 8), gradients_return=False)
    with pytest.raises(ProtocolError, match="reports step 6; the report of step 5 is expected"):
        window.take_report(6)
    assert [window.take_report(step).step for step in range(5, 8)] == [5, 6, 7]
    with pytest.raises(ProtocolError, match="speaks of step 8, which is not in flight"):
        window.take_report(8)
    with pytest.raises(ProtocolError, match="nothing was expected"):
        window.accept(gradient(8))
