"""A run from Python, as a notebook makes it: what it is told while it trains."""

from edge_agent import train
from tests.support.experiments import flags
from tests.support.running import edge_config


def test_progress_is_told_after_every_step_with_figures_that_are_known():
    seen = []

    def note(progress):
        seen.append((progress.steps, progress.total_steps, f"{progress.loss:.3f}", progress.step_time.recent))

    train(edge_config(*flags("mlp", "sgd"), "trainers=[]", "training.max_steps=5"), on_progress=note)
    assert sorted({steps for steps, *_ in seen}) == [1, 2, 3, 4, 5]
    assert {total for _, total, *_ in seen} == {5}
    assert seen[-1][-1] > 0
