"""A calibration on the digits: a real network, real codecs, and the order of updates of the real pipeline."""

import json
import statistics

import pytest

from edge_agent.calibration_trainings import CalibrationSettings
from edge_agent.profiling import profile_model
from shared.planning import Rates, SearchSpace, greedy, load_profile
from tests.support.running import edge_config, running_trainer

pytestmark = pytest.mark.usefixtures("one_thread")

NETWORK = ["model.kwargs={width=8, blocks=2}", "training.optimizer={learning_rate=0.05, momentum=0.9}"]


@pytest.mark.slow
async def test_a_network_is_calibrated_at_one_cut_and_a_plan_keeps_to_it(tmp_path):
    path, seen = tmp_path / "profile.json", []
    settings = CalibrationSettings(budget_points=2.0, epochs=1, seeds=2, most_staleness=2, cuts=(2,))
    async with running_trainer() as server:
        config = edge_config(*NETWORK, f"trainer.address={server.address}")
        await profile_model(config, 2, path, on_training=lambda *done: seen.append(done), calibration=settings)
    profile, calibration = load_profile(path), json.loads(path.read_text())["calibration"]
    assert profile.min_bits is not None
    bits = profile.min_bits[2]
    assert [bits is not None for bits in profile.min_bits] == [
        cut in (2, len(profile)) for cut in range(len(profile) + 1)
    ]
    assert not list(tmp_path.glob("profile.json.*"))
    assert [done for done, _ in seen[:-1]] == list(range(1, len(calibration["trainings"]) + 1))

    means, serial = {}, statistics.fmean(calibration["serial_accuracy"])
    for training in calibration["trainings"]:
        key = training["staleness"], training["bits"]
        means.setdefault(key, []).append(training["accuracy"])
    lost = {key: serial - statistics.fmean(accuracies) for key, accuracies in means.items()}
    allowed = max(0.02, calibration["serial_spread_points"] / 100)
    assert serial > 0.3, "it learns, so that there is something to lose"
    assert lost[profile.max_staleness, bits] <= allowed + 1e-9
    assert all(loss > allowed for (staleness, width), loss in lost.items() if width < bits and staleness)
    assert all(
        loss > allowed for (staleness, width), loss in lost.items() if width == 32 and staleness > profile.max_staleness
    )

    plan = greedy(profile, Rates(1e6, 1e6), SearchSpace(bits=(1, 2, 3, 4, 5, 6, 7, 8, 16, 32))).deployment
    assert (plan.cut, plan.bits) == (2, bits)
