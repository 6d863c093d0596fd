"""The choice of a trainer while training goes on: what probes and training show, weighed once a second by a policy.

The policies, `Best` of the engine and `EdgeMove` of paper 003, are pure, and those of `benchmarks.rivals.moving`. Clock,
probes, logs and metrics are here. Operators take precedence: the choice rests while a trainer is pinned, or the planner is
`fixed`.
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import structlog

from edge_agent.adaptation.candidates.knowledge import LEAST_STEPS, MEASURED_LOOKS, Believed, CandidateKnowledge
from edge_agent.adaptation.candidates.probes import CandidateProbes
from edge_agent.adaptation.decisions import DecisionLoop
from edge_agent.adaptation.engine_inputs import engine_config, question_of
from edge_agent.adaptation.polling import polling
from edge_agent.experiment.candidates import policy_of
from edge_agent.experiment.experiment import Experiment, has_one_cut, trainers_with_blocks
from edge_agent.observability.metrics import CandidateMetrics
from edge_agent.planner_names import EDGEMOVE, FIXED
from edge_agent.planning import FLOAT32_BITS, Profile, Question, SearchSpace, layout_of
from edge_agent.planning.engine.best import Best
from edge_agent.planning.engine.prospects import DEVICE, Place, Prospects, Seen, Today
from edge_agent.planning.families.pair import best_pairs
from edge_agent.planning.papers.edgemove import EdgeMove
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.statistics import RecentMean, Statistics
from edge_agent.training.training_run import TrainingRun
from shared.errors import ConfigError, DataError, IsthmusError, ModelError, PlanError, RefusedError
from shared.placement import AGENT, Placement, held_blocks
from shared.registry import codec_bits

_log = structlog.get_logger(__name__)

MEASURED_CANDIDATES = 3
"""Candidates whose links and blocks are measured: the best by what is known."""


class TrainerChoice:
    """The choice of one run. Used on its event loop; policies and costs run on other threads, one at a time."""

    def __init__(
        self,
        experiment: Experiment,
        profile: Profile,
        policy: str,
        statistics: Statistics,
        metrics: CandidateMetrics,
        is_held: Callable[[], bool],
    ) -> None:
        """policy: `best` or `edgemove`. is_held: tells whether an operator has pinned what the policy would choose.

        Raises PlanError if the profile leaves nothing to choose.
        """
        config = experiment.config
        self._experiment = experiment
        question = question_of(experiment, profile)
        self._profile, self._space = question.profile, question.space
        self._policy_name = policy
        self._statistics, self._metrics = statistics, metrics
        self._is_held = is_held
        self._names = (AGENT, *(trainer.name for trainer in config.all_trainers))
        self._prospects = Prospects(best_pairs(question), len(self._names))
        self._chosen_space = self._space
        """The space of the layouts that are weighed now."""
        self._policy: Best | EdgeMove | None = None
        self._candidate: int | None = None
        """Candidate that the policy knows of."""
        self._step_seconds = RecentMean(MEASURED_LOOKS, LEAST_STEPS)
        self._going: asyncio.Task[None] | None = None
        self._expected_pause: float | None = None
        """Seconds that the blocks of the requested handover should take; None without one."""
        self.probes = CandidateProbes(experiment, profile.workers[1], self._note_bytes)
        self.knowledge = CandidateKnowledge(self._names[1:], self._profile, statistics, self.probes.known)
        self.ranking: dict[str, float] = {}
        """Seconds of a step with each candidate that could be chosen now, the device alone among them, the fastest first."""

    def _note_bytes(self, count: int) -> None:
        self._metrics.probe_bytes.value += count

    @asynccontextmanager
    async def running(self, run: TrainingRun, decisions: DecisionLoop | None) -> AsyncIterator[None]:
        """Choose for this run while the body runs. decisions: of its engine; None where the policy moves the cut."""
        async with self.probes.running():
            try:
                async with polling(partial(self.look, run, decisions)):
                    yield
            finally:
                if self._going is not None:
                    self._going.cancel()
                    await asyncio.wait({self._going})

    async def look(self, run: TrainingRun, decisions: DecisionLoop | None, seconds: float) -> None:
        """Probe what is due, weigh all candidates, and act on the result."""
        deployer = run.deployer
        self.probes.look(seconds, run.session.members.keys())
        placement = run.session.placement
        place = self._place(placement)
        if place is None or deployer.moving:
            self._step_seconds.forget()
            return
        await asyncio.to_thread(self._adopt_space, decisions)
        believed = None if decisions is None else await decisions.believed()
        today = self._today(place, placement, believed, seconds)
        if today is None:
            return
        cut = int(self._prospects.pairs.cuts[today.place.row])
        stalled = run.session.members.stalled
        known = self.knowledge.candidates(self._names[place], today, cut, believed, stalled)
        seen = await asyncio.to_thread(self._prospects.weigh, today, known)
        self._show(seen)
        run.session.members.ranking = [name for name in self.ranking if name != AGENT]
        self._measure_best(seen, today, run.session.members.opening_limit_seconds)
        if self._candidate != place:
            self._begin_at(place, seconds)
        if not np.isfinite(seen.step_seconds[place]) and not self._is_lost(place):
            return  # nothing is known of its link yet
        if self._names[place] in stalled or not self._may_choose(deployer, decisions):
            return  # of a step that is held up there is no end at which another trainer could begin; recovery leaves it
        assert self._policy is not None
        wanted = await asyncio.to_thread(self._policy.observe, seen)
        if wanted is None or not np.isfinite(seen.step_seconds[wanted.candidate]):
            return
        if self._may_choose(deployer, decisions):  # an operator may have come meanwhile
            self._go(deployer, seen, wanted, today.place.candidate)

    def _may_choose(self, deployer: Deployer, decisions: DecisionLoop | None) -> bool:
        return not self._is_resting(decisions) and not deployer.moving and has_one_cut(deployer.placement)

    def _is_lost(self, place: int) -> bool:
        """Tell whether today's candidate has to be left: a trainer out of reach, or the device where it may not be alone."""
        if place == DEVICE:
            return not self._prospects.pairs.is_alone.any()
        return not self._statistics.is_flowing and self.probes.known[self._names[place]].has_failed

    def _is_resting(self, decisions: DecisionLoop | None) -> bool:
        is_going = self._going is not None and not self._going.done()
        return is_going or self._is_held() or (decisions is not None and decisions.planner == FIXED)

    def _place(self, placement: Placement) -> int | None:
        """Return today's candidate; None where an operator or a recovery has placed blocks otherwise."""
        if not has_one_cut(placement):
            return None
        having = trainers_with_blocks(placement)
        return self._names.index(having[0]) if having else DEVICE

    def _begin_at(self, place: int, seconds: float) -> None:
        """Have the policy know today's candidate, whoever chose it."""
        if self._policy is None:
            self._policy = self._made_policy(place)
        self._policy.note_moved(seconds, place)
        self._candidate = place
        self._step_seconds.forget()

    def _made_policy(self, candidate: int) -> Best | EdgeMove:
        config = self._experiment.config
        if self._policy_name == EDGEMOVE:
            draw = random.Random(f"{config.training.seed} {EDGEMOVE}")
            return EdgeMove.of(self._prospects.pairs, draw, config.choice.cycle_steps)
        return Best(len(self._names), candidate, engine_config(config.engine))

    def _adopt_space(self, decisions: DecisionLoop | None) -> None:
        """Choose among the layouts that pins leave free."""
        space = self._space if decisions is None else self._pinned_space(decisions)
        if space != self._chosen_space:
            try:
                self._prospects.adopt(best_pairs(Question(self._profile, space)))
            except PlanError as nothing:
                _log.debug("the choice keeps its layouts", reason=str(nothing))
            else:
                self._chosen_space = space

    def _pinned_space(self, decisions: DecisionLoop) -> SearchSpace:
        pinned = decisions.engine.question.space
        return replace(
            self._space,
            cuts=pinned.cuts,
            bits=pinned.bits,
            staleness=pinned.staleness,
            allow_edge_only=self._space.allow_edge_only or pinned.allow_edge_only,
        )

    def _today(self, place: int, placement: Placement, believed: Believed | None, seconds: float) -> Today | None:
        """Return the training as it is; None where nothing like its layout was measured."""
        pairs, layout = self._prospects.pairs, layout_of(placement, codec_bits)
        cut, bits = len(held_blocks(placement, AGENT)), (*layout.bits, FLOAT32_BITS)[0]
        away = np.abs(pairs.bits - bits) + np.abs(pairs.staleness - layout.staleness)
        rows = np.flatnonzero(pairs.cuts == cut)
        if not len(rows):
            if place != DEVICE:
                return None
            rows = np.array([0])  # it may not be alone: no layout with it is weighed
        taken = self._step_seconds.take(self._statistics.step_time)
        return Today(
            seconds,
            self._statistics.steps,
            Place(place, int(rows[np.argmin(away[rows])])),
            taken if self._statistics.is_flowing else None,
            self.knowledge.believed_factor(DEVICE, cut, believed),
        )

    def _show(self, seen: Seen) -> None:
        seconds = seen.step_seconds
        order = [place for place in np.argsort(seconds, kind="stable").tolist() if math.isfinite(seconds[place])]
        self.ranking = {self._names[place]: float(seconds[place]) for place in order}
        self._metrics.step_seconds.clear()
        for name, each in self.ranking.items():
            self._metrics.step_seconds.set(each, name)

    def _measure_best(self, seen: Seen, today: Today, most_seconds: float | None) -> None:
        """Have the best of the others measured, and those of which no rates are known. most_seconds: see `measure`."""
        (place, row), cuts, step_seconds = today.place, self._prospects.pairs.cuts, seen.step_seconds
        shown = self.knowledge.streamed(self._names[place])
        known_well = (DEVICE, place) if shown.uplink and shown.downlink else (DEVICE,)
        others = [each for each in np.argsort(step_seconds).tolist() if each not in known_well]
        wanted = []
        for each in others[:MEASURED_CANDIDATES]:
            name, first = self._names[each], float(step_seconds[each])
            if self.probes.known[name].probed is not None:
                is_known = math.isfinite(first)
                cut = int(cuts[seen.rows[each] if is_known else row])
                wanted.append((name, first if is_known else 0.0, cut))
        self.probes.measure(today.seconds, wanted, most_seconds)

    def _go(self, deployer: Deployer, seen: Seen, wanted: Place, today: int) -> None:
        """Request what the policy proposes. today: the candidate of now."""
        target, seconds = self._names[wanted.candidate], seen.step_seconds
        try:
            placement = self._placement(deployer.placement, wanted)
        except (ConfigError, DataError, ModelError) as refusal:
            if wanted.candidate != DEVICE:
                self.probes.leave_out(target, seen.seconds, str(refusal))
            return
        if set(placement.tiles) == set(deployer.placement.tiles):
            assert self._policy is not None
            self._policy.note_moved(seen.seconds, wanted.candidate)
            return
        _log.info(
            "choosing another trainer" if wanted.candidate != today else "moving the cut",
            today=self._names[today],
            wanted=target,
            layout=str(layout_of(placement, codec_bits)),
            staying_seconds_per_step=round(float(seconds[today]), 4),
            predicted_seconds_per_step=round(float(seconds[wanted.candidate]), 4),
            predicted_pause_seconds=round(float(seen.handover_seconds[wanted.candidate]), 3),
        )
        if not deployer.want(placement, Chooser.CHOICE):
            return
        self._expected_pause = float(seen.moving_seconds[wanted.candidate])
        self._going = asyncio.create_task(self._follow(deployer, target, seen.seconds))

    def _placement(self, before: Placement, wanted: Place) -> Placement:
        """Return the next placement: with all blocks on the device, that of the trainer before."""
        (trainer,) = (name for name in before.workers if name != AGENT)
        if wanted.candidate != DEVICE:
            trainer = self._names[wanted.candidate]
        layout = self._prospects.pairs.layout(wanted.row, trainer)
        return self._experiment.laid_out(layout, self._experiment.with_trainer(before, trainer))

    async def _follow(self, deployer: Deployer, target: str, seconds: float) -> None:
        """Wait until the request is in force. A candidate that refuses is left out."""
        try:
            await deployer.in_force()
        except RefusedError as refusal:
            if target != AGENT:
                self.probes.leave_out(target, seconds, str(refusal))
        except IsthmusError as failure:
            _log.info("another placement came first", wanted=target, reason=str(failure))
        finally:
            self._expected_pause = None

    def note_pause(self, pause_seconds: float) -> None:
        """Learn how long a handover took that has just come into force."""
        if self._expected_pause is not None:
            self._prospects.note_pause(self._expected_pause, pause_seconds)


def make_choice(
    experiment: Experiment,
    profile: Profile | None,
    statistics: Statistics,
    metrics: CandidateMetrics,
    is_held: Callable[[], bool],
) -> TrainerChoice | None:
    """Make the choice of a run; None where the trainer is chosen by operators alone. See `TrainerChoice`."""
    policy = policy_of(experiment.config)
    if policy == FIXED or profile is None:
        return None
    return TrainerChoice(experiment, profile, policy, statistics, metrics, is_held)
