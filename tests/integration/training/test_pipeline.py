"""Invariants 2 and 3: exactly once and bounded, whatever the timing; and what the weights are then, bit for bit.

The real pipeline and the real training stream run in virtual time, so every order of events that delays can bring about
is a test case that comes again.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cloud_trainer.rpc.incoming_batches import IncomingBatches
from edge_agent.data.prefetch import MOST_READY
from shared.codec import FeedbackMode, codec_by_name
from shared.errors import IsthmusError, OutOfTurnError, ProtocolError
from shared.tensor_wire import to_wire
from shared.training.policies import POLICIES
from shared.transport.rpc.status import StatusError
from shared.transport.stream.framing import TensorKey
from shared.wire.isthmus.v1.tensor_pb2 import Role
from shared.wire.isthmus.v1.trainer_pb2 import Deployment, TrainRequest
from tests.support.models.tuples import CUTS, tupled, tupled_chain
from tests.support.plain import assert_same_bits, plain_forward, plain_optimizer, plain_split, plain_update
from tests.support.virtual import Wire, cloud_end, edge_end, run_virtually
from tests.support.virtual_split import (
    BLOCKS,
    CUT,
    LIMITS,
    RECIPE,
    SAMPLES,
    SEED,
    Delays,
    Record,
    VirtualSplit,
    any_delays,
    batch_of,
    small_network,
)

pytestmark = pytest.mark.usefixtures("one_thread")


CODECS = st.sampled_from(["fp32", "fp16", "uniform8", "uniform2"])


@st.composite
def changes(draw) -> dict:
    """What may be changed while batches are in flight."""
    return draw(
        st.fixed_dictionaries({}, optional={"staleness": st.integers(0, 6), "codec": CODECS, "downlink_codec": CODECS})
    )


def samples_of(step: int) -> tuple[Tensor, Tensor]:
    batch = batch_of(step)
    return batch.inputs, batch.labels


def plain_state(record: Record, policy: str, feedback: FeedbackMode, cut: int = CUT) -> dict[str, Tensor]:
    """The state after the recorded order of forwards and backwards, computed one after the other."""
    blocks = list(small_network())
    plain_split(blocks, cut, RECIPE, policy, feedback, record.edge, record.deployments.__getitem__, samples_of)
    return nn.Sequential(*blocks).state_dict()


@settings(max_examples=80, deadline=None)
@given(
    delays=any_delays(),
    stops=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    limit=st.integers(0, 6),
    policy=st.sampled_from(sorted(POLICIES)),
    feedback=st.sampled_from(FeedbackMode),
    live=st.dictionaries(st.integers(0, 18), changes(), max_size=4),
    drains=st.sets(st.integers(0, 18), max_size=2),
    evaluations=st.booleans(),
    cut=st.sampled_from([CUT, BLOCKS]),
)
def test_every_batch_is_applied_once_in_order_and_never_too_late(
    delays, stops, limit, policy, feedback, live, drains, evaluations, cut
):
    stops = [sum(stops[: index + 1]) for index in range(len(stops))]
    split: VirtualSplit

    def on_forward(step: int) -> None:
        if step in live:
            split.deployment.change(**live[step])
        if step in drains:
            split.boundary.request()

    async def between(step: int) -> None:
        check_drained(split, step)
        if evaluations:
            before = split.state
            assert (await split.evaluate()).samples
            assert_same_bits(before, split.state)

    async def main() -> None:
        nonlocal split
        deployment = {"cut": cut, "staleness": limit, "codec": "uniform8"}
        split = VirtualSplit(policy=policy, feedback=feedback, delays=delays, deployment=deployment)
        split.on_forward = on_forward
        await split.train(stops, between)

    run_virtually(main)
    record, steps = split.record, list(range(stops[-1]))
    for done in (record.cloud, record.updated, record.reported, record.gradients_down, list(record.staleness)):
        assert done == steps
    for what in ("forward", "backward"):
        assert [step for kind, step in record.edge if kind == what] == steps
    limits = [record.deployments[step].staleness for step in steps]
    for step, staleness in record.staleness.items():
        # A gradient was late by the batches that started before it came, and those started under their own K.
        assert staleness <= limits[step + staleness]
    assert record.most_in_flight <= max(limits) + 1
    assert record.most_inputs_kept <= max(limits), "and that of the batch that is forwarded"
    assert record.most_shown_in_flight <= max(limits) + 1
    assert record.most_queued_in_cloud <= max(limits) + 1
    assert record.most_ahead <= MOST_READY + 1
    assert_same_bits(plain_state(record, policy, feedback, cut), split.state)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("codec", ["fp32", "uniform4"])
def test_several_tensors_cross_at_once(cut, policy, codec):
    """Floats with a gradient each and integers with none, compressed, late, and evaluated in between."""

    async def main() -> VirtualSplit:
        deployment = {"cut": cut, "staleness": 2, "codec": codec, "downlink_codec": "uniform8"}
        delays = Delays(up=lambda: 0.3, down=lambda: 0.2, cloud=lambda: 0.1)
        split = VirtualSplit(
            policy=policy,
            feedback=FeedbackMode.BATCH,
            delays=delays,
            deployment=deployment,
            make_chain=lambda: tupled_chain(tupled(), SAMPLES),
        )

        async def between(step: int) -> None:
            check_drained(split, step)
            assert (await split.evaluate()).samples == 2 * SAMPLES

        await split.train([4, 12], between)
        return split

    split = run_virtually(main)
    record, expected = split.record, tupled()
    blocks, crossing = list(expected.parts), record.deployments.__getitem__
    plain_split(blocks, cut, RECIPE, policy, FeedbackMode.BATCH, record.edge, crossing, samples_of)
    assert max(record.staleness.values()) == 2
    assert_same_bits(expected.state_dict(), split.state)


@settings(max_examples=60, deadline=None)
@given(
    delays=any_delays(),
    stops=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    limits=st.dictionaries(st.integers(0, 30), st.integers(0, 6), min_size=1, max_size=5),
)
def test_k_changes_at_the_planned_steps(delays, stops, limits):
    limits = {0: 2, **limits}
    stops = [sum(stops[: index + 1]) for index in range(len(stops))]
    split: VirtualSplit

    async def main() -> None:
        nonlocal split
        planned = {step: limit for step, limit in limits.items() if step}
        split = VirtualSplit(delays=delays, deployment={"staleness": limits[0]}, staleness_changes=planned)
        await split.train(stops)

    run_virtually(main)
    for step in range(stops[-1]):
        due = limits[max(position for position in limits if position <= step)]
        assert split.record.deployments[step].staleness == due
    assert_same_bits(plain_state(split.record, "replay", FeedbackMode.OFF), split.state)


def test_nothing_is_drained_where_k_is_planned_to_rise_or_fall():
    """With a slow link, as many batches as K allows are in flight on both sides of the change."""
    split: VirtualSplit
    in_flight: list[int] = []

    async def main() -> None:
        nonlocal split
        slow = Delays(up=lambda: 1.0, down=lambda: 1.0)
        split = VirtualSplit(delays=slow, deployment={"staleness": 3}, staleness_changes={10: 5, 20: 1})
        split.on_forward = lambda step: in_flight.append(step - len(split.record.staleness))
        await split.train([30])

    run_virtually(main)
    assert in_flight == [0, 1, 2, *[3] * 7, 4, *[5] * 9, *[1] * 10]


def check_drained(split: VirtualSplit, step: int) -> None:
    """Nothing is on its way, on either side."""
    assert split.training.next_step == step
    assert split.window.in_flight == 0
    assert split.window.owed() is None
    assert set(split.window.position) == {step}
    assert not any(split.training.server.waiting.values())
    assert len(split.record.staleness) == len(split.record.deployments) == step


@settings(max_examples=8, deadline=None)
@given(any_delays(), st.integers(1, 12), st.sampled_from(sorted(POLICIES)))
def test_with_k_of_0_the_weights_are_those_of_a_plain_loop(delays, steps, policy):
    async def main() -> VirtualSplit:
        split = VirtualSplit(delays=delays, policy=policy)
        await split.train([steps])
        return split

    module = small_network().train()
    optimizer = plain_optimizer(module, RECIPE.optimizer)
    for step in range(steps):
        batch = batch_of(step)
        loss = nn.functional.cross_entropy(plain_forward(module, SEED, step, batch.inputs), batch.labels)
        loss.backward()
        plain_update([block.parameters() for block in module], optimizer, RECIPE, step)
    split = run_virtually(main)
    assert_same_bits(module.state_dict(), split.state)
    assert set(split.record.staleness.values()) == {0}


@pytest.mark.parametrize("limit", range(7))
def test_a_slow_link_makes_every_gradient_as_late_as_allowed(limit):
    """A rule that admitted less would leave the link waiting."""

    async def main() -> Record:
        split = VirtualSplit(delays=Delays(up=lambda: 1.0), deployment={"staleness": limit})
        await split.train([30])
        return split.record

    record = run_virtually(main)
    late = list(record.staleness.values())
    assert late[: 30 - limit] == [limit] * (30 - limit)
    assert late[30 - limit :] == list(range(limit - 1, -1, -1)), "at the end there are fewer and fewer behind"
    assert record.most_in_flight == record.most_shown_in_flight == limit + 1


@pytest.mark.parametrize(("before", "after"), [(0, 4), (4, 0), (2, 5)])
def test_a_limit_changed_in_the_middle_holds_from_the_next_batch_on(before, after):
    async def main() -> Record:
        split = VirtualSplit(delays=Delays(up=lambda: 1.0), deployment={"staleness": before})
        split.on_forward = lambda step: split.deployment.change(staleness=after) if step == 14 else None
        await split.train([30])
        return split.record

    record = run_virtually(main)
    assert [record.deployments[step].staleness for step in range(30)] == [before] * 15 + [after] * 15
    # Gradients that are under way at the change are as late as the batches after them are early.
    assert max(record.staleness[step] for step in range(15 - max(before, after))) == before
    assert max(record.staleness[step] for step in range(15, 30)) == after


@pytest.mark.parametrize("limit", [0, 2])
def test_a_drain_ends_the_run_with_the_batch_that_starts_next(limit):
    ends: list[int] = []

    async def main() -> None:
        split = VirtualSplit(delays=Delays(up=lambda: 1.0), deployment={"staleness": limit})
        split.on_forward = lambda step: split.boundary.request() if step == 5 else None

        async def between(step: int) -> None:
            check_drained(split, step)
            ends.append(step)

        await split.train([20, 30], between)

    run_virtually(main)
    assert ends == [7, 20, 30]


# --- what changes bring about between two batches


def test_two_changes_between_two_batches_are_one():
    async def main() -> VirtualSplit:
        split = VirtualSplit()

        async def between(_step: int) -> None:
            split.deployment.change(staleness=3)
            split.deployment.change(codec="uniform8")

        await split.train([2, 4], between)
        return split

    split = run_virtually(main)
    assert split.training.deployment == split.record.deployments[3]
    assert (split.training.deployment.staleness, split.training.deployment.codec) == (3, "uniform8")


def test_an_evaluation_after_a_change_is_not_refused():
    async def main() -> None:
        split = VirtualSplit()
        split.on_forward = lambda step: split.deployment.change(codec="uniform8") if step == 1 else None

        async def between(_step: int) -> None:
            await split.evaluate()

        await split.train([2, 4], between)

    run_virtually(main)


# --- an edge that does not keep the contract


def refused(requests, error: type[IsthmusError], sentence: str, staleness: int = 0) -> VirtualSplit:
    """Serve a stream on which `requests` come, each a deployment or a (step, role, version) to send; it must be refused."""

    async def main() -> VirtualSplit:
        split = VirtualSplit(deployment={"staleness": staleness}, delays=Delays(cloud=lambda: 1.0))
        up, down = Wire(1e9), Wire(1e9)
        edge = edge_end(up, down)
        for request in requests:
            if isinstance(request, Deployment):
                await edge.write(TrainRequest(deployment=request))
                continue
            step, role, version = request
            codec, tensor = ("raw", batch_of(step).labels) if role == LABEL else ("fp32", torch.zeros(4, 8))
            key = TensorKey(step, role, 0 if role == LABEL else CUT)
            await edge.send(to_wire(codec_by_name(codec).encode(tensor), key, version))
        incoming = IncomingBatches(split.session, TensorKey(0, LABEL), LIMITS.tensor_bytes)
        with pytest.raises(error, match=sentence):
            await split.serve(cloud_end(up, down, incoming.accept), incoming)
        return split

    return run_virtually(main)


FEATURE, LABEL = Role.ROLE_FEATURE, Role.ROLE_LABEL


def batches(count: int, version: int = 0):
    return [(step, role, version) for step in range(count) for role in (LABEL, FEATURE)]


def deployment(**fields) -> Deployment:
    return Deployment(**{"cut": CUT, "codec": "fp32", "downlink_codec": "fp32", **fields})


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_an_edge_that_sends_more_than_k_plus_one_batches_is_refused(limit):
    split = refused(batches(limit + 2), StatusError, rf"step {limit + 1} .* K is {limit}, ", staleness=limit)
    assert split.record.updated in ([], [0]), "what was refused was not applied"


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_deployment_that_does_not_follow_is_refused(version):
    requests = [deployment(version=3), deployment(version=version)]
    refused(
        requests,
        ProtocolError,
        f"deployment {version} at cut {CUT} came; a later one than 3, at cut {CUT}, could follow",
    )


def test_a_deployment_at_another_cut_is_refused():
    refused([deployment(version=1, cut=1)], ProtocolError, "deployment 1 at cut 1 came")


def test_a_deployment_beyond_the_operators_limit_is_refused():
    refused([deployment(version=1, staleness=65)], ProtocolError, r"65 is more than .* 64 \(server.max_staleness\)")


def test_a_deployment_with_a_codec_that_is_not_there_is_refused():
    refused([deployment(version=1, codec="zip")], IsthmusError, "codec 'zip' does not exist")


@pytest.mark.parametrize("version", [0, 2])
def test_a_frame_of_another_deployment_is_refused(version):
    refused(
        [deployment(version=1), (0, LABEL, version)],
        OutOfTurnError,
        f"under deployment {version}; .* under deployment 1 was expected",
    )


@pytest.mark.parametrize("step", [1, 7])
def test_a_step_that_is_not_due_is_refused(step):
    refused([(step, LABEL, 0)], OutOfTurnError, f"step {step} came where the label of step 0 was expected")


def test_a_step_that_comes_twice_is_refused():
    split = refused(
        [*batches(1), (0, LABEL, 0)], OutOfTurnError, "step 0 came where the label of step 1 was expected", staleness=3
    )
    assert split.record.updated in ([], [0])


def test_a_message_that_says_nothing_is_refused():
    refused([Deployment()], ProtocolError, "deployment 0 at cut 0 came")
