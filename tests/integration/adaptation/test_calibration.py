"""A calibration on the digits: a real network, real codecs, and the order of updates of the real pipeline."""

import asyncio
import json
import statistics
from dataclasses import replace

import pytest

from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.improvement_config import FollowedFigure
from edge_agent.planning import Rates, SearchSpace, greedy, load_profile
from edge_agent.profiling.calibrate_on import CalibrateOn
from edge_agent.profiling.calibration import Lossiness
from edge_agent.profiling.calibration_copies import DeviceCopies, TrainerCopies
from edge_agent.profiling.calibration_trainings import CalibrationSettings
from edge_agent.profiling.events import CopyTrained, Estimated
from edge_agent.profiling.workers.pair_profile import profile_pair
from shared.client.trainer import TrainerClient
from shared.errors import BusyError, ConfigError, ProtocolError, RefusedError
from shared.model.inputs import InputSpecs
from shared.model.spec import TensorSpec
from tests.support.planning.cases import asked
from tests.support.running import edge_config, emit_to, running_trainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

DIGITS = '{factory="edge_agent.data:digits", kwargs={split="%s"}}'
DATA = [f"data.train={DIGITS % 'train'}", f"data.calibration={DIGITS % 'test'}"]
STAND_IN = [f"calibration.train={DIGITS % 'train'}", f"calibration.test={DIGITS % 'test'}"]
NETWORK = ["model.kwargs={width=8, blocks=2}", "training.optimizer={learning_rate=0.05, momentum=0.9}"]


async def test_a_network_is_calibrated_at_one_cut_and_a_plan_keeps_to_it(tmp_path):
    path, seen, said = tmp_path / "profile.json", [], []
    settings = CalibrationSettings(budget_points=2.0, epochs=1, seeds=2, most_staleness=2, cuts=(2,))
    emit = emit_to({Estimated: said.append, CopyTrained: lambda event: seen.append((event.done, event.total))})
    async with running_trainer() as server:
        config = edge_config(*NETWORK, *DATA, f"trainer.address={server.address}")
        await profile_pair(config, path, 2, emit, calibration=settings)
    profile, calibration = load_profile(path), json.loads(path.read_text())["remarks"]["calibration"]
    assert profile.min_bits is not None
    bits = profile.min_bits[2]
    assert [bits is not None for bits in profile.min_bits] == [
        cut in (2, len(profile)) for cut in range(len(profile) + 1)
    ]
    assert not list(tmp_path.glob("profile.json.*"))
    assert [done for done, _ in seen[:-1]] == list(range(1, len(calibration["trainings"]) + 1))
    assert sum("calibrating at the cuts" in event.line for event in said) == 1

    means, serial = {}, statistics.fmean(calibration["serial"])
    for training in calibration["trainings"]:
        if training["share"] == 1.0:
            means.setdefault((training["staleness"], training["bits"]), []).append(training["value"])
    lost = {key: serial - statistics.fmean(accuracies) for key, accuracies in means.items()}
    allowed = max(0.02, calibration["serial_spread"])
    assert serial > 0.3, "it learns, so that there is something to lose"
    assert lost[profile.max_staleness, bits] <= allowed + 1e-9

    space = SearchSpace(bits=(1, 2, 3, 4, 5, 6, 7, 8, 16, 32), allow_edge_only=False)
    plan = greedy(*asked(profile, Rates(1e6, 1e6), space)).layout
    assert (plan.cuts, plan.bits) == ((2,), (bits,))


@pytest.mark.full
async def test_the_trainer_calibrates_on_its_operators_samples_and_never_reads_the_devices(tmp_path):
    path, said = tmp_path / "profile.json", []
    settings = CalibrationSettings(50.0, 1, 1, 1, cuts=(2,), bits=(8,), on=CalibrateOn.TRAINER)
    async with running_trainer(*STAND_IN) as server:
        config = edge_config(*NETWORK, DATA[0], f"trainer.address={server.address}")
        emit = emit_to({Estimated: lambda event: said.append(event.line)})
        await profile_pair(config, path, 2, emit, calibration=settings)
    calibration = json.loads(path.read_text())["remarks"]["calibration"]
    assert calibration["on"] == "trainer"
    assert calibration["serial"][0] > 0.3, "it learns"
    assert load_profile(path).min_bits[2] is not None
    *_, sentence = said
    assert "on the trainer takes about" in sentence
    assert "of 44 steps" in sentence, "of the operator's samples"


@pytest.mark.full
@pytest.mark.parametrize("metrics", ['["top5", "tests.support.told:hits"]'])
async def test_both_places_train_the_same_copy_to_the_same_figures(metrics):
    """One set of samples, one seed."""
    candidate, names = Lossiness(2, 1, 8), {"loss", "accuracy", "top5", "tests.support.told:hits"}
    flags = [*NETWORK, *DATA, f"data.test={DIGITS % 'train'}", f"training.metrics={metrics}"]
    async with running_trainer(*STAND_IN) as server:
        config = edge_config(*flags, f"trainer.address={server.address}")
        experiment = Experiment(config)
        with AgentThreads.started() as threads:
            copies = DeviceCopies(experiment, threads)
            here = await copies.train(candidate, 0, 1.0, 1.0)
            assert set((await copies.time(candidate)).figures) == names
        async with TrainerClient(config.trainer, config.link) as client:
            copies = TrainerCopies(experiment, client)
            assert set((await copies.time(candidate)).figures) == names
            there = await copies.train(candidate, 0, 1.0, 1.0)
    assert dict(there) == here
    assert here.keys() == names
    assert here["tests.support.told:hits"] == pytest.approx(here["accuracy"])


async def test_a_regression_is_calibrated_by_its_loss(tmp_path):
    """Its samples have no classes, so nothing of it was calibrated by accuracy."""
    path = tmp_path / "profile.json"
    regression = [
        'model.factory="shared.model.zoo:mlp"',
        "model.kwargs={depth=3}",
        "training.loss=mse",
        'data.train={factory="tests.support.samples:OneHotDigits"}',
        'data.calibration={factory="tests.support.samples:OneHotDigits", kwargs={split="test"}}',
    ]
    settings = CalibrationSettings(5.0, 1, 1, 1, cuts=(1,), bits=(8,), figure=FollowedFigure(metric="loss"))
    by_accuracy = replace(settings, figure=FollowedFigure(metric="accuracy"))
    async with running_trainer() as server:
        config = edge_config(*regression, f"trainer.address={server.address}")
        with pytest.raises(
            ConfigError, match=r"compares 'accuracy', .* 'mse' do not have; choose --calibrate-metric of loss"
        ):
            await profile_pair(config, path, 2, calibration=by_accuracy)
        await profile_pair(config, path, 2, calibration=settings)
    calibration = json.loads(path.read_text())["remarks"]["calibration"]
    assert calibration["metric"] == "loss"
    assert calibration["serial"][0] > 0
    assert load_profile(path).min_bits[1] is not None


@pytest.mark.parametrize(
    ("operator", "flags", "request_fields", "error", "says"),
    [
        ([], [], {}, ProtocolError, "this trainer's operator has put no data there for calibrations"),
        ([*STAND_IN, "calibration.max_epochs=0.5"], [], {}, RefusedError, r"limit is 0.5 \(calibration.max_epochs\)"),
        ([*STAND_IN, "calibration.max_seconds=0.001"], [], {}, RefusedError, "calibration.max_seconds"),
        ([*STAND_IN, "server.max_session_bytes=1000"], [], {}, RefusedError, "server.max_session_bytes"),
        (STAND_IN, ["data.batch_size=2000"], {}, RefusedError, "fewer than a batch of 2000"),
        (STAND_IN, [], {"staleness": 65}, RefusedError, "a staleness of 65"),
        (STAND_IN, [], {"bits": 99}, ConfigError, "no codec has 99 bits"),
    ],
)
async def test_what_the_operator_does_not_give_to_a_copy_is_refused_in_words(
    operator, flags, request_fields, error, says
):
    candidate = Lossiness(**({"cut": 2, "staleness": 0, "bits": 32} | request_fields))
    async with running_trainer(*operator) as server:
        config = edge_config(*NETWORK, f"trainer.address={server.address}")
        experiment = Experiment(config)
        if flags:
            (spec,) = experiment.example.specs
            experiment.example = InputSpecs((TensorSpec((2000, *spec.shape[1:]), spec.dtype),))
        async with TrainerClient(config.trainer, config.link) as client:
            with pytest.raises(error, match=says):
                await TrainerCopies(experiment, client).train(candidate, 0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("operator", "flags", "says"),
    [
        ("my_models", [], "my_models"),
        ("shared.model.zoo", ["training.loss=tests.support.models.losses:summing"], "losses:summing"),
    ],
)
async def test_what_is_not_allowed_is_not_run_for_a_copy_either(operator, flags, says):
    async with running_trainer(*STAND_IN, f'models.allowed=["{operator}"]') as server:
        config = edge_config(*NETWORK, *flags, f"trainer.address={server.address}")
        async with TrainerClient(config.trainer, config.link) as client:
            with pytest.raises(RefusedError, match=says):
                await TrainerCopies(Experiment(config), client).train(Lossiness(2, 0, 32), 0, 1.0, 1.0)


async def test_samples_unlike_the_edges_are_refused():
    flat = '{factory="tests.support.samples:FlatDigits"'
    operator = [f"calibration.train={flat}}}", f'calibration.test={flat}, kwargs={{split="test"}}}}']
    async with running_trainer(*operator) as server:
        config = edge_config(*NETWORK, f"trainer.address={server.address}")
        async with TrainerClient(config.trainer, config.link) as client:
            with pytest.raises(RefusedError, match=r"samples float32 \(64,\), the edge's are float32 \(1, 8, 8\)"):
                await TrainerCopies(Experiment(config), client).train(Lossiness(2, 0, 32), 0, 1.0, 1.0)


async def test_one_copy_is_trained_at_a_time_and_none_for_a_caller_that_has_gone():
    """The process that trains for a caller is ended when the caller goes, so the next one finds the place free."""
    operator = [*STAND_IN, "calibration.max_epochs=1e6", "calibration.max_seconds=1e6"]
    async with running_trainer(*operator) as server:
        config = edge_config(*NETWORK, f"trainer.address={server.address}")
        experiment, candidate = Experiment(config), Lossiness(2, 0, 32)
        async with TrainerClient(config.trainer, config.link) as client:
            copies = TrainerCopies(experiment, client)
            endless = {asyncio.create_task(copies.train(candidate, seed, 1e6, 1.0)) for seed in (0, 1)}
            (refused,), (endless_one,) = await asyncio.wait(endless, return_when=asyncio.FIRST_COMPLETED)
            with pytest.raises(BusyError, match="another copy is being trained"):
                refused.result()
            endless_one.cancel()
            while await busy(copies, candidate):
                assert not endless_one.done() or endless_one.cancelled()


async def busy(copies, candidate):
    try:
        await copies.time(candidate)
    except BusyError:
        return True
    return False
