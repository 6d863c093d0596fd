"""The search of a calibration, with accuracies that the test invents: right on both sides of the budget, and with few
trainings."""

import asyncio
import json
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.experiment import Experiment
from edge_agent.improvement_config import FollowedFigure
from edge_agent.main import main
from edge_agent.planning import Engine, Rates, SearchSpace, greedy, parse_profile, profile_to_json
from edge_agent.profiling.calibration import WHOLE, Lossiness, calibrate, usual_shares
from edge_agent.profiling.calibration_copies import DeviceCopies
from edge_agent.profiling.calibration_trainings import (
    Calibration,
    CalibrationSettings,
    Training,
    Trainings,
    calibrated,
    estimate,
)
from edge_agent.profiling.events import CopyTrained, Estimated
from edge_agent.profiling.profile_parts import PartFile
from shared.errors import ConfigError, ExitCode
from shared.events import ignore
from shared.execution.copy_training import CopyTiming
from shared.registry import bit_widths
from tests.support.commands import MLP
from tests.support.planning.cases import MBIT, asked, pair, small_profile
from tests.support.planning.engine_cases import between
from tests.support.running import edge_config, emit_to

BUDGET = 0.01


def searched(harm, cuts=(1, 2, 3), most_staleness=8, baseline=(0.9, 0.9)):
    """Search where a candidate loses `harm(candidate)` with every seed. Returns the result, the candidates and their lengths.

    harm: may take the length of the training too.
    """
    lost = harm if harm.__code__.co_argcount == 2 else lambda candidate, _share: harm(candidate)
    trained = {}

    async def accuracies(candidate, share):
        trained[candidate, share] = share
        return [accuracy - lost(candidate, share) for accuracy in baseline]

    return asyncio.run(calibrate(accuracies, cuts, most_staleness, BUDGET, bit_widths())), trained


bearable_staleness = st.dictionaries(st.sampled_from([1, 2, 3, 4]), st.integers(0, 12), min_size=1)
bearable_bits = st.fixed_dictionaries({cut: st.sampled_from(bit_widths()) for cut in (1, 2, 3, 4)})


@given(staleness=bearable_staleness, bits=bearable_bits, most=st.integers(0, 9))
@example(staleness={1: 12, 2: 3, 3: 0}, bits=dict.fromkeys((1, 2, 3, 4), 8), most=8)
def test_bounds_of_monotone_harm_are_found_with_few_trainings(staleness, bits, most):
    cuts = sorted(staleness)

    def harm(candidate):
        too_stale = candidate.staleness > staleness[candidate.cut]
        return 0.5 * (too_stale or candidate.bits < bits[candidate.cut])

    found, trained = searched(harm, cuts, most)
    assert found.max_staleness == min(most, *staleness.values())
    assert found.min_bits == {cut: bits[cut] for cut in cuts}
    whole = [candidate for candidate, share in trained if share == WHOLE]
    assert len(whole) <= 1 + len(cuts), "one a cut beside the serial one"
    assert sum(trained.values()) < 2 + 3.5 * len(cuts), "what is asked of a cut costs less than three and a half"


@given(bits=st.sampled_from(bit_widths()), misled=st.sampled_from(bit_widths()), most=st.integers(0, 4))
def test_harm_that_only_a_whole_training_shows_is_found_too(bits, misled, most):
    def harm(candidate, share):
        return 0.5 * (candidate.bits < (bits if share == WHOLE else min(bits, misled)))

    found, trained = searched(harm, [1, 2], most)
    assert found.min_bits == {1: bits, 2: bits}
    for cut in (1, 2):
        exact = (found.max_staleness, found.min_bits[cut]) == (0, 32)
        assert exact or (Lossiness(cut, found.max_staleness, found.min_bits[cut]), WHOLE) in trained


@given(bearable=st.integers(0, 8))
def test_a_staleness_that_only_a_whole_training_shows_to_harm_is_not_taken(bearable):
    found, _ = searched(lambda candidate, share: 0.5 * (share == WHOLE and candidate.staleness > bearable))
    assert found.max_staleness == bearable


@given(weights=st.tuples(st.floats(0, 0.01), st.floats(0, 0.002)), cuts=st.integers(1, 4), most=st.integers(0, 8))
def test_k_and_bits_keep_the_budget_together(weights, cuts, most):
    by_staleness, by_bits = weights

    def harm(candidate):
        return by_staleness * candidate.staleness / candidate.cut + by_bits * (32 - candidate.bits)

    found, _ = searched(harm, range(1, cuts + 1), most)
    for cut in range(1, cuts + 1):
        assert harm(Lossiness(cut, found.max_staleness, found.min_bits[cut])) <= BUDGET + 1e-6
        fewer = [bits for bits in bit_widths() if bits < found.min_bits[cut]]
        assert not fewer or harm(Lossiness(cut, found.max_staleness, fewer[-1])) > BUDGET - 1e-6
    assert found.max_staleness == most or harm(Lossiness(1, found.max_staleness + 1, 32)) > BUDGET - 1e-6


@pytest.mark.parametrize(("lost", "bits"), [(BUDGET, 1), (BUDGET + 1e-6, 32)])
def test_a_loss_within_the_budget_is_accepted_and_a_larger_one_is_not(lost, bits):
    found, _ = searched(lambda candidate: lost * (candidate.bits < 32), cuts=[2])
    assert found.min_bits == {2: bits}


def test_a_loss_within_the_spread_of_seeds_is_none_and_is_reported():
    def harm(candidate):
        return 0.03 * (candidate.bits < 8) + 0.02 * (candidate.bits < 32)

    with capture_logs() as logs:
        assert searched(harm, cuts=[1], baseline=(0.92, 0.88, 0.9))[0].min_bits == {1: 8}
    assert [entry["spread"] for entry in logs] == [0.04]
    with capture_logs() as logs:
        assert searched(harm, cuts=[1], baseline=(0.9, 0.9, 0.9))[0].min_bits == {1: 32}
    assert logs == []


def test_a_model_that_bears_the_most_is_asked_once_a_cut_for_it():
    found, asked = searched(lambda _candidate: 0.0)
    assert (found.max_staleness, set(found.min_bits.values())) == (8, {1})
    assert [candidate for candidate, _ in asked if candidate.bits == 32 and candidate.staleness] == [
        Lossiness(cut, 8, 32) for cut in (1, 2, 3)
    ]


CALIBRATED = calibrated(
    small_profile(max_staleness=5),
    searched(lambda candidate: 0.5 * (candidate.staleness > 2 or candidate.bits < 4), cuts=[2])[0],
    CalibrationSettings(cuts=(2,)),
    [Training(cut=2, staleness=0, bits=32, seed=0, share=1.0, value=0.9)],
)


def test_the_findings_are_written_to_the_file_and_read_again():
    mapping = json.loads(profile_to_json(CALIBRATED))
    assert (mapping["min_bits"], mapping["max_staleness"]) == ([None, None, 4, None, 32], 2)
    assert mapping["remarks"]["calibration"]["serial"] == [0.9, 0.9]
    assert mapping["remarks"]["calibration"]["trainings"] == [
        {"cut": 2, "staleness": 0, "bits": 32, "seed": 0, "share": 1.0, "value": 0.9}
    ]
    assert profile_to_json(parse_profile(mapping, "p.json")) == profile_to_json(CALIBRATED)


def test_a_plan_keeps_to_what_was_calibrated():
    slow, space = Rates(MBIT, MBIT), SearchSpace(bits=(1, 2, 4, 8, 32), allow_edge_only=False)
    free = greedy(*asked(small_profile(max_staleness=5), slow, space)).layout
    assert (free.cuts, free.bits) == ((3,), (1,))
    assert greedy(*asked(CALIBRATED, slow, space)).layout.bits[0] == 4
    for mbit in (0.1, 1, 10, 100, 1000):
        plan = greedy(*asked(CALIBRATED, Rates(mbit * MBIT, mbit * MBIT), space)).layout
        assert (plan.cuts, plan.staleness <= 2, plan.bits >= (4,)) == ((2,), True, True)


def test_the_engine_keeps_to_what_was_calibrated():
    engine = Engine(CALIBRATED, SearchSpace(bits=(1, 2, 4, 8, 32), allow_edge_only=False), pair(3, 5, 1))
    decision = engine.observe(between(1.0, 1, Rates(MBIT, MBIT)))
    assert decision is not None, "today's deployment was not calibrated"
    assert decision.layout == pair(cut=2, staleness=2, bits=4)


THREE_BLOCKS = small_profile(
    blocks=small_profile().blocks[:3],
    feature_bytes=(None, 4e6, 2e6, None),
    gradient_bytes=(None, 4e6, 2e6, None),
    edge_seconds=(None, 1.0, 2.0, 3.0),
    cloud_seconds=(None, 0.4, 0.3, 0.0),
)
"""A profile with as many blocks as the MLP."""


FLAT = '{factory="tests.support.samples:FlatDigits"}'
MLP_TO_CALIBRATE = [*MLP, f'data.calibration={FLAT[:-1]}, kwargs={{split="test"}}}}']


class MadeUp:
    """Copies whose accuracies and times the test invents."""

    where = "in a test"

    def __init__(self, battery=None, figures=None):
        """figures: of a copy with few bits, and of any other, by name."""
        self.trained, self.battery = [], battery
        self.figures = figures or {"accuracy": (0.8, 0.9)}

    async def time(self, _candidate):
        return CopyTiming(
            seconds_per_step=0.5,
            seconds_per_judged_batch=0.25,
            steps_per_epoch=40,
            judged_batches=8,
            figures=tuple(self.figures),
        )

    async def train(self, candidate, seed, epochs, share):
        if len(self.trained) == self.battery:
            raise RuntimeError("the battery is empty")
        self.trained.append((candidate, seed, share))
        assert epochs == 5 * share
        return {name: few if candidate.bits < 4 else many for name, (few, many) in self.figures.items()}


def calibration(path, settings, *flags, copies=None, emit=ignore):
    experiment = Experiment(edge_config(*(flags or MLP_TO_CALIBRATE)))
    return Calibration(experiment, settings, copies or MadeUp(), PartFile(path, Trainings), emit)


async def test_trainings_before_an_interruption_are_not_repeated(tmp_path):
    seen = []

    async def once(copies, *flags, budget_points=1.0):
        settings = CalibrationSettings(budget_points, seeds=2, most_staleness=2)
        emit = emit_to({CopyTrained: lambda event: seen.append((event.done, event.total))})
        made = calibration(tmp_path / "t", settings, *flags, copies=copies, emit=emit)
        return (await made.of(THREE_BLOCKS)).min_bits

    interrupted, resumed = MadeUp(battery=5), MadeUp()
    with pytest.raises(RuntimeError, match="battery"):
        await once(interrupted)
    assert await once(resumed) == (None, 4, 4, 32)
    trained = [*interrupted.trained, *resumed.trained]
    assert len(trained) == len(set(trained)), "nothing twice"
    assert seen[-1] == (len(trained), len(trained))
    another = MadeUp()
    assert await once(another, budget_points=20.0) == (None, 2, 2, 32)
    assert not set(trained) & set(another.trained), "another budget is another question about the same trainings"
    changed = MadeUp()
    await once(changed, *MLP_TO_CALIBRATE, "training.epochs=9")
    assert set(trained) <= set(changed.trained), "of another experiment nothing is known"


@pytest.mark.parametrize(
    ("figure", "values", "least"),
    [
        ({"metric": "loss"}, (0.51, 0.5), 4),
        ({"metric": "loss"}, (0.504, 0.5), 2),
        ({"metric": "mae", "mode": "min"}, (51.0, 50.0), 4),
        ({"metric": "r2", "mode": "max"}, (0.97, 0.99), 4),
        ({"metric": "r2", "mode": "max"}, (0.985, 0.99), 2),
        ({"metric": "loss"}, (float("nan"), 0.5), 4),
        ({"metric": "r2", "mode": "max"}, (float("inf"), 0.5), 4),
    ],
)
async def test_of_any_other_figure_the_budget_is_per_cent_of_the_serial_training(figure, values, least, tmp_path):
    copies = MadeUp(figures={figure["metric"]: values, "accuracy": (0.1, 0.9)})
    settings = CalibrationSettings(1.0, seeds=2, most_staleness=0, figure=FollowedFigure(**figure))
    made = await calibration(tmp_path / "t", settings, copies=copies).of(THREE_BLOCKS)
    assert made.min_bits == (None, least, least, 32)
    assert made.remarks["calibration"]["serial"] == [values[1]] * 2
    assert made.remarks["calibration"]["metric"] == figure["metric"]


async def test_a_serial_training_without_a_number_is_nothing_to_compare_with(tmp_path):
    copies = MadeUp(figures={"loss": (float("nan"), float("nan"))})
    settings = CalibrationSettings(seeds=2, figure=FollowedFigure(metric="loss"))
    with pytest.raises(ConfigError, match="is no finite number, so there is nothing to compare with"):
        await calibration(tmp_path / "t", settings, copies=copies).of(THREE_BLOCKS)


async def test_a_figure_that_the_copies_do_not_have_is_named_before_one_is_trained(tmp_path):
    copies = MadeUp(figures={"loss": (1.0, 1.0)})
    with pytest.raises(ConfigError, match=r"compares 'accuracy', .* choose --calibrate-metric of loss"):
        await calibration(tmp_path / "t", CalibrationSettings(), copies=copies).of(THREE_BLOCKS)
    assert copies.trained == []


async def test_the_estimated_time_is_shown_before_the_first_training(tmp_path):
    copies, said = MadeUp(), []
    emit = emit_to({Estimated: lambda event: said.append((event.line, len(copies.trained)))})
    settings = CalibrationSettings(seeds=2, most_staleness=2)
    await calibration(tmp_path / "t", settings, copies=copies, emit=emit).of(THREE_BLOCKS)
    ((sentence, trained),) = said
    assert trained == 0
    assert "calibrating at the cuts 1, 2 in a test" in sentence
    assert "500 ms a step" in sentence
    assert f"{2 * len(usual_shares(2, 2, (2, 4, 8, 32)))} trainings, 6 of them of 5 epochs of 40 steps" in sentence


@given(cuts=st.integers(1, 6), most=st.integers(0, 8))
def test_the_estimate_counts_the_trainings_if_no_short_training_misleads(cuts, most):
    _, trained = searched(lambda candidate: 0.5 * (candidate.bits < 2), range(1, cuts + 1), most)
    assert sorted(trained.values()) == sorted(usual_shares(cuts, most, bit_widths()))


def test_the_estimate_is_the_time_of_every_training_and_of_its_judging():
    timing = CopyTiming(
        seconds_per_step=0.5, seconds_per_judged_batch=1.0, steps_per_epoch=160, judged_batches=20, figures=()
    )
    settings = CalibrationSettings(epochs=2, seeds=3)
    assert "takes about 19 min:" in estimate(timing, [1.0, 0.5, 0.5], [1], settings, "here")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (MLP, "data.calibration is not set"),
        ([*MLP, f"data.calibration={FLAT}"], "data.calibration and data.train are the same"),
        (
            [*MLP_TO_CALIBRATE, MLP_TO_CALIBRATE[-1].replace("calibration", "test")],
            "data.calibration and data.test are",
        ),
    ],
)
def test_a_calibration_has_samples_of_its_own(flags, says):
    with pytest.raises(ConfigError, match=says), AgentThreads.started() as threads:
        DeviceCopies(Experiment(edge_config(*flags)), threads)


@pytest.mark.parametrize(
    ("cuts", "says"),
    [
        ((0,), "the cuts to calibrate are 0; with 3 blocks they must be from 1 to 2"),
        ((2, 3), "the cuts to calibrate are 2, 3; with 3 blocks"),
    ],
)
def test_a_model_that_cannot_be_calibrated_is_refused_before_any_training(tmp_path, cuts, says):
    with pytest.raises(ConfigError, match=says):
        calibration(tmp_path / "t", CalibrationSettings(cuts=cuts), *MLP)


async def test_cuts_that_were_skipped_are_not_calibrated(tmp_path):
    made = calibration(tmp_path / "t", CalibrationSettings(cuts=(1,)))
    with pytest.raises(ConfigError, match="of the cuts 1 none could be measured"):
        await made.of(small_profile(edge_seconds=(None, None, 2.0, 3.0, 5.0)))


async def test_copies_of_a_regression_have_its_loss_and_its_metrics():
    one_hot = '{factory="tests.support.samples:OneHotDigits"'
    test = f'{one_hot}, kwargs={{split="test"}}}}'
    flags = [*MLP, "training.loss=mse", *(f"data.{key}={one_hot}}}" for key in ("train", "test"))]
    flags.append(f"data.calibration={test}")
    with AgentThreads.started() as threads:
        experiment = Experiment(edge_config(*flags, 'training.metrics=["mae"]'))
        figures = await DeviceCopies(experiment, threads).train(Lossiness(1, 0, 32), seed=0, epochs=1, share=1.0)
    assert figures.keys() == {"loss", "mae"}
    assert 0 < figures["loss"] < figures["mae"] < 1, "an output is less than 1 from its label"


async def test_the_samples_to_judge_by_are_collated_as_those_to_train_on():
    words = '{factory="tests.support.samples:Words"'
    flags = [
        'model.factory="tests.support.models.several:NamedEncoder"',
        "model.kwargs={vocabulary=50, classes=4}",
        f"data.train={words}}}",
        f"data.calibration={words}, kwargs={{samples=40}}}}",
        'data.collate="tests.support.batches:padded"',
        'privacy.inputs_to=["trainer"]',
    ]
    with AgentThreads.started() as threads:
        copies = DeviceCopies(Experiment(edge_config(*flags)), threads)
        figures = await copies.train(Lossiness(2, 0, 32), seed=0, epochs=1, share=1.0)
    assert 0 <= figures["accuracy"] <= 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--calibrate-cuts=two"], '--calibrate-cuts is "two"; it must be whole numbers'),
        (["--calibrate", "--calibrate-cuts=9"], "the cuts to calibrate are 9; with 3 blocks they must be from 1 to 2"),
        (
            ["--calibrate", "--calibrate-bits=9"],
            "the bits to calibrate are 9, 32; there are 1, 2, 3, 4, 5, 6, 7, 8, 16, 32",
        ),
        (["--calibrate", "--calibrate-metric=f1"], '--calibrate-metric is "f1", which is not computed; choose one of'),
        (["--on=trainer"], "--on trainer says who trains copies; it goes with --calibrate"),
    ],
)
def test_the_command_refuses_impossible_options(tmp_path, monkeypatch, capsys, arguments, says):
    flags = [f"--set={flag}" for flag in MLP_TO_CALIBRATE]
    monkeypatch.setattr(sys, "argv", ["edge-agent", "profile", f"--out={tmp_path / 'p.json'}", *flags, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.CONFIG
    assert f"edge-agent: {says}" in capsys.readouterr().err
