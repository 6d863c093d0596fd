"""Features of which only what has changed is sent: training is that of a loop that keeps each sample's last feature itself."""

import pytest

from benchmarks.net.relay import Fault, Relay
from edge_agent.training.events import Placed
from isthmus import run_training
from shared.errors import ConfigError, ExitCode, RefusedError
from shared.execution.step_scheduler import StepScheduler
from shared.placement import AGENT
from tests.integration.training.test_lengths import CONTINUED
from tests.support.plain import assert_same_bits
from tests.support.plain_changed import plain_changed, plain_changed_late
from tests.support.plain_late import steady_order
from tests.support.running import Listening, cut_at, edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

EPOCHS, WIDTH, CUT = 3, 16, 2
SAMPLES, FEATURE_BYTES = 490, WIDTH * 8 * 8 * 4  # 16 steps an epoch, of which the last has no whole batch
FLAGS = [
    f'data.train={{factory="tests.support.samples:Pictures", kwargs={{count={SAMPLES}}}}}',
    f"model.kwargs={{width={WIDTH}, blocks=2, dropout=0.2}}",
    'model.frozen=["stem"]',
    'model.frozen_mode="eval"',
    'training.optimizer={name="adamw", learning_rate=0.003}',
    f"training.epochs={EPOCHS}",
    f"deployment.cut={CUT}",
    'deployment.codec="uniform8"',
    "data.drop_last=false",
]
CHANGES = 'deployment.changes="topk1"'


def keeping(tmp_path):
    return f"checkpoints.location={tmp_path}"


@pytest.mark.first_case
@pytest.mark.parametrize(
    "more",
    [
        [CHANGES],
        [CHANGES, "deployment.changes_above=0.2"],
        ['deployment.changes="uniform4"', 'deployment.codec="fp16"', 'deployment.feedback="off"'],
        [CHANGES, 'deployment.downlink_codec="uniform8"', "training.accumulate_batches=2"],
        [CHANGES, "data.drop_last=true", "data.batch_size=100"],
    ],
)
async def test_weights_are_those_of_a_loop_that_keeps_features(more):
    async with running_trainer() as server:
        config = edge_config(*FLAGS, *more, f"trainer.address={server.address}")
        result = await run_training(config)
    assert_same_bits(plain_changed(config, {0: CUT}), result.module.state_dict())


@pytest.fixture
def order(monkeypatch):
    """Record the device's forwards and backwards, in their order."""
    found, finish = [], StepScheduler.finish

    def noted(steps, work):
        if steps.worker == AGENT and steps.window.plan.training:
            found.append((("forward", "backward")[work.segment], work.step))
        return finish(steps, work)

    monkeypatch.setattr(StepScheduler, "finish", noted)
    return found


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ([CHANGES], None),
        ([CHANGES, "deployment.changes_above=0.2", "deployment.staleness_correction=prediction"], None),
        ([CHANGES, 'deployment.backward="stash"', 'deployment.downlink_codec="uniform8"'], None),
        (['deployment.changes="uniform4"', 'deployment.codec="fp16"', 'deployment.feedback="literal"'], None),
        ([CHANGES, "deployment.staleness_correction=prediction"], Fault.DROP),
    ],
)
async def test_late_gradients_come_to_the_weights_of_a_loop_that_keeps_features_and_is_as_late(more, fault, order):
    learning = [*FLAGS, "model.frozen=[]", 'model.frozen_mode="train"', "deployment.staleness=3"]
    async with running_trainer() as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def progressed(statistics):
                if fault is not None and statistics.steps in (10, 30):
                    relay.inject(fault)

            config = edge_config(*learning, *more, f"trainer.address={relay.address}", "link.stall_seconds=1")
            result = await run_training(config, Listening(progressed))
    steps = result.summary.steps
    assert sorted(order) == sorted((what, step) for what in ("backward", "forward") for step in range(steps))
    assert order != list(steady_order(0, steps, 0)), "no gradient was late, so nothing was compared"
    assert_same_bits(plain_changed_late(config, order), result.module.state_dict())


async def test_a_change_takes_few_bytes_and_a_sample_that_rests_next_to_none():
    sent = []
    async with running_trainer() as server:
        for more in ([], [CHANGES], [CHANGES, "deployment.changes_above=0.99"]):
            flags = [*FLAGS, *more, "training.evaluate_every_epochs=0", f"trainer.address={server.address}"]
            sent.append((await run_training(edge_config(*flags))).summary.bytes_up / EPOCHS)
    whole, later = sent[0], (EPOCHS - 1) / EPOCHS
    assert sent[1] < whole / EPOCHS + later * 0.16 * whole
    assert sent[2] < whole / EPOCHS + later * 20 * SAMPLES


@pytest.mark.first_case
@pytest.mark.parametrize("fault", [Fault.DROP, Fault.CORRUPT])
async def test_a_lost_link_changes_nothing(fault):
    async with running_trainer() as server:
        host, _, port = server.address.partition(":")
        async with Relay(host, int(port)) as relay:

            def progressed(statistics):
                if statistics.steps in (10, 30):
                    if fault is Fault.CORRUPT:
                        relay.uplink.corrupt_next(200)
                    else:
                        relay.inject(fault)

            config = edge_config(*FLAGS, CHANGES, f"trainer.address={relay.address}", "link.stall_seconds=1")
            result = await run_training(config, Listening(progressed))
    assert_same_bits(plain_changed(config, {0: CUT}), result.module.state_dict())


@pytest.mark.slow
async def test_a_moved_cut_begins_anew():
    cuts, deployers, done = {0: CUT}, [], [0]

    def progressed(statistics):
        done.append(statistics.steps)
        if statistics.steps == 25 and deployers:
            cut_at(deployers.pop(), 1)

    def placed(event):
        cuts[done[-1]] = event.deployment.edge_blocks

    async with running_trainer() as server:
        config = edge_config(*FLAGS, CHANGES, f"trainer.address={server.address}")
        result = await run_training(config, Listening(progressed, deployers.append, {Placed: placed}))
    assert [*cuts.values()] == [CUT, 1]
    assert_same_bits(plain_changed(config, cuts), result.module.state_dict())


async def test_features_for_which_there_is_no_room_are_refused():
    needed = SAMPLES * (FEATURE_BYTES + 8)
    async with running_trainer(f"server.max_recalled_bytes={needed}") as server:
        await run_training(edge_config(*FLAGS, CHANGES, "training.max_steps=2", f"trainer.address={server.address}"))
    async with running_trainer(f"server.max_recalled_bytes={needed - 1}") as server:
        with pytest.raises(
            RefusedError, match=rf"keep {needed} bytes .* \(deployment.changes\).* gives {needed - 1} to one"
        ):
            await run_training(edge_config(*FLAGS, CHANGES, f"trainer.address={server.address}"))
    large = [*FLAGS, 'data.train={factory="tests.support.samples:Pictures"}']
    async with running_trainer("server.max_session_bytes=10000000") as server:
        await run_training(edge_config(*large, "training.max_steps=2", f"trainer.address={server.address}"))
        with pytest.raises(RefusedError, match=r"to one .server\.max_session_bytes"):
            await run_training(edge_config(*large, CHANGES, f"trainer.address={server.address}"))
    assert RefusedError.exit_code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["deployment.recall=true"], "recall is true and changes is set"),
        (["deployment.cut=4"], "takes one cut"),
        (['output.directory="results"', "output.record=true"], "output.record is true"),
        (["checkpoints.replicas=1"], "checkpoints.replicas is set"),
        (['group.name="line"'], "a group's trainers keep no features"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_contacted(more, sentence):
    with pytest.raises(ConfigError, match=sentence):
        await run_training(edge_config(*FLAGS, CHANGES, *more, "trainer.address=127.0.0.1:9"))
    with pytest.raises(ConfigError, match=r"changes_above is 0\.1 and changes is left out"):
        edge_config("deployment.changes_above=0.1")
    assert ConfigError.exit_code is ExitCode.CONFIG


async def test_a_trainer_keeps_no_features_of_several_lengths():
    """Also for an agent that does not refuse them itself."""
    flags = [*CONTINUED, "deployment.cut=2", 'privacy.inputs_to=["trainer"]']
    async with running_trainer("server.accept_inputs=true") as server:
        config = edge_config(*flags, f"trainer.address={server.address}")
        changing = config.deployment.model_copy(update={"changes": "topk1"})  # copies are not judged
        with pytest.raises(RefusedError, match="samples have several lengths"):
            await run_training(config.model_copy(update={"deployment": changing}))
