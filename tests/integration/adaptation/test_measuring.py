"""Measuring while a run trains: it leaves every weight as it is, and training does not stand still for it."""

import time
from contextlib import asynccontextmanager
from statistics import median

import numpy as np
import pytest

import edge_agent.attempts
from edge_agent.adaptation import measuring, polling
from edge_agent.adaptation.measuring import MOST_RANGES, STEPS, Measurement
from edge_agent.planning import Engine
from edge_agent.planning.engine.devices import Devices
from edge_agent.profiling.timers import timer_meanwhile
from isthmus import run_training
from tests.integration.adaptation.test_chain_decisions import NAMES, block_names, chain_file, chain_flags
from tests.support.experiments import flags
from tests.support.placement_kinds import running_trainers
from tests.support.plain import assert_same_bits, plain_state
from tests.support.running import Listening, edge_config

pytestmark = pytest.mark.usefixtures("one_thread")


class Watched:
    """A run whose engine measures all workers, whatever their steps take."""

    def __init__(self, monkeypatch):
        self.timed = []
        """By step that was timed: the worker, the blocks, when it began and ended, and what training waited."""
        self.step_ends = []
        monkeypatch.setattr(Engine, "misfits", NAMES)
        monkeypatch.setattr(measuring, "deciding_range", self._any_range)
        monkeypatch.setattr(Devices, "is_usual", lambda *_: True)
        monkeypatch.setattr(Measurement, "is_of", lambda *_: True)  # a busy machine is another device now and then
        monkeypatch.setattr(Measurement, "contradiction", "")
        monkeypatch.setattr(polling, "INTERVAL_SECONDS", 0.02)
        monkeypatch.setattr(edge_agent.attempts, "timer_meanwhile", self._timers)

    @staticmethod
    def _any_range(_pool, _now, _worker, ratios, _spreads, known, _margin):
        return next((run for run in map(tuple, np.argwhere(np.isfinite(ratios)).tolist()) if run not in known), None)

    @asynccontextmanager
    async def _timers(self, session, worker):
        async with timer_meanwhile(session, worker) as timer:

            async def noted(first, stop):
                begun = time.monotonic()
                timed = await timer(first, stop)
                self.timed.append((worker, (first, stop), begun, time.monotonic(), timed.waited_seconds))
                return timed

            yield noted

    async def train(self, tmp_path, steps):
        """Train so many steps on three workers; returns the flags and the result."""
        engine = chain_file(tmp_path / "chain.json", (1, 2), blocks=block_names())
        chosen = [
            *flags("cnn", "sgd"),
            f"training.max_steps={steps}",
            "training.epochs=10000",
            "training.evaluate_every_epochs=0",
        ]
        kept = ["engine.bits=[32]", "engine.margin=0.99"]  # all workers have blocks for as long as they are measured
        watching = Listening(progressed=lambda _: self.step_ends.append(time.monotonic()))
        async with running_trainers() as servers:
            flags_of_run = [*chosen, *chain_flags(servers, (1, 2)), engine, *kept]
            return chosen, await run_training(edge_config(*flags_of_run), watching)


@pytest.mark.full
async def test_measuring_workers_while_they_train_leaves_every_weight_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "MEASURING_PART", 0.5)
    watched = Watched(monkeypatch)
    chosen, result = await watched.train(tmp_path, 1_000)
    for name in NAMES:
        asked = [run for worker, run, *_ in watched.timed if worker == name]
        assert len(set(asked)) == MOST_RANGES
        assert {asked.count(run) for run in asked} == {STEPS + 1}
    assert_same_bits(plain_state(edge_config(*chosen)), result.module.state_dict())


@pytest.mark.slow
async def test_training_does_not_stand_still_for_what_is_measured(tmp_path, monkeypatch):
    watched = Watched(monkeypatch)
    await watched.train(tmp_path, 400)
    ends = np.array(watched.step_ends)
    usual_seconds, run_seconds = float(np.median(np.diff(ends))), float(ends[-1] - ends[0])
    waited = [waited for *_, waited in watched.timed]
    assert len(waited) >= 3
    assert sum(waited) <= measuring.MEASURING_PART * run_seconds + max(waited), "a hundredth of the time"
    for (*_, ended, _), (_, _, begun, *_) in zip(watched.timed, watched.timed[1:], strict=False):
        assert np.any((ends > ended) & (ends < begun)), "training goes on between two steps that are timed"
    gaps = []
    for _, _, begun, ended, seconds in watched.timed:
        before, after = np.searchsorted(ends, begun), np.searchsorted(ends, ended)
        if before > 0 and after < len(ends):
            gaps.append((ends[after] - ends[before - 1]) / (seconds + usual_seconds))
    assert median(gaps) < 4.0, "no more than the step that is timed comes between two of training"
