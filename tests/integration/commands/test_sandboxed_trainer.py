"""A trainer in a sandbox that forbids what the trainer can do without."""

import pytest

from tests.support.running import heard_trainer_process, run_agent
from tests.support.sandbox import forbid_priorities


@pytest.mark.slow
def test_a_trainer_that_may_not_change_priorities_serves_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", forbid_priorities(tmp_path))
    with heard_trainer_process(begun_by_python=True) as (_, address, _):
        done = run_agent("run", f"--set=trainer.address={address}", "--set=training.max_steps=2")
    assert done.returncode == 0, done.stderr
