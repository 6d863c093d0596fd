"""The decision loop: it reports measurements to the engine once a second, and has the deployer do what the engine decides.

The engine (edge_agent.planning.engine) is pure and decides, for two workers as for a chain. Clock, codecs by name, logs and
metrics are here; jobs.py has the work that takes longer. The engine decides on another thread,
and has one caller at a time. Operators take precedence: `pin` narrows the engine's choice, and
`use` stops and starts the choice of the rest.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import structlog

from edge_agent.adaptation.engine_inputs import make_engine
from edge_agent.adaptation.jobs import Jobs
from edge_agent.adaptation.link_probe import LinkProbe, SeenLinks, make_link_probes
from edge_agent.adaptation.measuring import Measuring, StepTimers
from edge_agent.adaptation.polling import polling
from edge_agent.experiment.candidates import has_candidates, policy_of
from edge_agent.experiment.experiment import Experiment, has_one_cut, trainers_with_blocks
from edge_agent.observability.metrics import EngineMetrics
from edge_agent.planner_names import EDGEMOVE, FIXED, GREEDY
from edge_agent.planning import (
    Conditions,
    Decision,
    Engine,
    Layout,
    Observation,
    Profile,
    SearchSpace,
    layout_of,
)
from edge_agent.planning.engine.decision import EngineChange
from edge_agent.planning.engine.pool import is_measured
from edge_agent.planning.profile import Hop
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.statistics import RecentMean, Statistics
from edge_agent.training.training_run import TrainingRun
from shared.errors import IsthmusError, PlanError
from shared.placement import AGENT, Placement
from shared.registry import codec_bits

_log = structlog.get_logger(__name__)


class DecisionLoop:
    """The decisions of one run. All methods are called on its event loop."""

    def __init__(
        self,
        engine: Engine,
        statistics: Statistics,
        metrics: EngineMetrics,
        probes: Mapping[str, LinkProbe],
        profile_with: Callable[[str], Profile] | None = None,
    ) -> None:
        """probes: of the links from the first worker to the others, by their names. profile_with: returns the profile of the
        device and another trainer, where the run may be handed over to one that the profile does not name.
        """
        self._profile_with = profile_with
        self._rests_alone = profile_with is not None and not engine.question.space.allow_edge_only
        """True if it is another's choice whether all blocks are here."""
        self.engine = engine
        self._configured_space = engine.question.space
        self._unpinned_space = engine.question.space
        """Choices before pins narrow them."""
        self._here = engine.names[0]
        self._blocks = len(engine.question.profile)
        self._present = frozenset(engine.names)
        """Workers of the run now."""
        self.planner = GREEDY
        self._pinned: tuple[tuple[int, ...] | None, int | None, int | None] = (None, None, None)
        """Cuts, bits and K that an operator fixes; None if free."""
        self._links = SeenLinks(self._here, statistics, probes)
        self._statistics = statistics
        self._means = defaultdict[str, RecentMean](RecentMean)
        self._encoding = RecentMean()
        self._metrics = metrics
        self._proposal: Decision | None = None
        self._layout_before: Layout | None = None
        """Layout that the newest proposal was to replace."""
        self.last_change: EngineChange | None = None
        """The engine's newest change that came into force; None before one."""
        self._withdraws = False
        """True if the layout that runs is to stay, whatever was requested."""
        self._alone = asyncio.Lock()
        """Held by the one that uses the engine."""
        self.measuring_seconds = 0.0
        """Seconds that training waited for the engine's own measuring."""
        measuring = Measuring(self.engine, self._alone, self._note_measuring)
        self._jobs = Jobs(self.engine, self._alone, measuring)

    @asynccontextmanager
    async def running(self, run: TrainingRun, timers: StepTimers) -> AsyncIterator[None]:
        """Decide for this run while the body runs. timers: of steps of blocks at a worker."""
        try:
            async with polling(partial(self.look, run)), self._jobs.running(run, timers, self.apply):
                yield
        finally:
            await self._links.close()
            self._log_outcome()

    async def look(self, run: TrainingRun, seconds: float) -> None:
        """Observe once, and act on the result. seconds: any clock that never goes back."""
        deployer = run.deployer
        async with self._alone:
            stood_still, self._statistics.stood_still = self._statistics.stood_still, False
            if self._withdraws:
                self._withdraws = False
                self._want(deployer, self.engine.layout)
            if self._rests_alone and not trainers_with_blocks(deployer.placement):
                self._links.end()
                self.engine.note_standstill(seconds, self._statistics.steps)
                return
            if not deployer.moving or self._proposal is None or self.engine.is_elsewhere:
                is_known = not deployer.moving and await self._report_placement(run, seconds)
                if stood_still or not (is_known and self._statistics.is_flowing):
                    self._rest(deployer, seconds, is_known=is_known)
                    return
            known = self._links.known(self.engine, seconds, is_moving=deployer.moving)
            if not known and not self._links.are_measured(self.engine):
                return
            rates: dict[Hop, float | None] = dict(self._statistics.link_rates)
            trips: dict[Hop, float | None] = {}
            for name, link in known.items():
                rates[self._here, name], rates[name, self._here] = link.uplink, link.downlink
                trips[self._here, name] = link.round_trip_seconds
            trips |= self._statistics.link_trips
            work, encoding = self.take_seconds(), self._take_encoding()
            seen = Observation(seconds, self._statistics.steps, rates, trips, work, encoding)
            decision = await asyncio.to_thread(self.engine.observe, seen)
            self._jobs.wake()
            self._export()
            if decision is not None:
                self.apply(deployer, decision)

    def _rest(self, deployer: Deployer, seconds: float, *, is_known: bool) -> None:
        """Judge nothing until the next look."""
        if deployer.moving:  # as another wants it
            self._links.end()
        elif not is_known and self._statistics.is_flowing:
            self.engine.note_elsewhere(seconds, self._statistics.steps)
            return
        self.engine.note_standstill(seconds, self._statistics.steps)

    async def believed(self) -> tuple[Profile, Conditions]:
        """Return the times of today's workers as the engine has them, and the links and factors that it believes in now."""
        async with self._alone:
            return self.engine.question.profile, self.engine.conditions

    def take_seconds(self) -> dict[str, float | None]:
        """Return the mean seconds of computing of each worker for a step since the last call."""
        taken: dict[str, float | None] = {}
        for name in self.engine.layout.workers:
            if (figures := self._statistics.workers.get(name)) is not None:
                taken[name] = self._means[name].take(figures.compute)
        return taken

    def _take_encoding(self) -> dict[str, float | None]:
        """Return the same of encoding here, where features are sent in fewer bits."""
        encoding = self._encoding.take(self._statistics.encode)
        sends_narrow = any(route.sender == self._here for route, _ in self.engine.layout.widths)
        return {self._here: encoding} if sends_narrow else {}

    async def _report_placement(self, run: TrainingRun, seconds: float) -> bool:
        """Report workers and a layout that the engine does not know yet: its own proposal, done or given up, an operator's, or
        recovery's. Returns whether the engine can decide from there."""
        deployer, members = run.deployer, run.session.members
        actual = layout_of(deployer.placement, codec_bits)
        if (other := self._other_trainer(deployer.placement)) is not None:
            await self._begin_with(other, actual)
        present = frozenset(self.engine.names).difference(members.left_out)
        if present != self._present:
            self._present = present
            if self.planner == FIXED:
                self._unpinned_space = self._holding(actual)
            await self._constrain_as_pinned()
        if not is_measured(self.engine.question.profile, actual):
            if self._proposal is not None:  # something else came into force
                self._proposal = None
                self.engine.note_deployed(seconds, self.engine.layout)
            return False
        if self._proposal is None and actual == self.engine.layout:
            return True
        self._log_outcome()
        before, proposal, self._proposal = self._layout_before, self._proposal, None
        if proposal is not None and before is not None and actual == proposal.layout != before:
            self.last_change = EngineChange(time.time(), self._statistics.steps, before, proposal)
        self.take_seconds()  # earlier steps had another layout
        self._encoding.take(self._statistics.encode)
        await asyncio.to_thread(self.engine.note_deployed, seconds, actual)
        return True

    def _other_trainer(self, placement: Placement) -> str | None:
        """Return the trainer that the run was handed over to, if the engine does not know it yet."""
        names = [name for name in placement.workers if name not in self.engine.names]
        return names[0] if self._profile_with is not None and has_one_cut(placement) and names else None

    async def _begin_with(self, trainer: str, layout: Layout) -> None:
        """Go on with the times and the link of another trainer. Pins hold there, too."""
        assert self._profile_with is not None
        self._log_outcome()
        profile = self._profile_with(trainer)
        try:
            await asyncio.to_thread(self.engine.hand_over, profile, self._configured_space, layout)
        except PlanError as unknown:
            _log.warning("the engine rests with another trainer", trainer=trainer, reason=str(unknown))
            return
        self._proposal, self._withdraws = None, False
        self._present = frozenset(self.engine.names)
        self._means.clear()
        self._encoding.take(self._statistics.encode)
        self._unpinned_space = self._holding(layout) if self.planner == FIXED else self._configured_space
        await self._constrain_as_pinned()
        _log.info("the engine goes on with another trainer", trainer=trainer)

    def apply(self, deployer: Deployer, decision: Decision) -> None:
        """Request what the engine has decided."""
        wanted, today = decision.layout, layout_of(deployer.placement, codec_bits)
        _log.info(
            "changing the deployment",
            today=str(today),
            wanted=str(wanted),
            workers=", ".join(wanted.workers),
            home=str(self.engine.home),
            reason=decision.reason,
            cause=decision.cause,
            predicted_seconds_per_step=round(decision.seconds_per_step, 4),
            staying_seconds_per_step=round(decision.staying_seconds_per_step, 4),
            predicted_migration_seconds=round(decision.migration_seconds, 3),
        )
        self._metrics.decisions.labels(decision.reason).inc()
        self._proposal, self._layout_before = decision, today
        moves = wanted.tiles != today.tiles
        if moves:
            self._links.end()
        give_up_seconds = decision.abandon_after_seconds if moves else math.inf
        self._want(deployer, wanted, give_up_seconds if math.isfinite(give_up_seconds) else None)

    def _want(self, deployer: Deployer, layout: Layout, give_up_seconds: float | None = None) -> None:
        if self._other_trainer(deployer.placement) is not None:  # it was handed over since
            return
        try:
            placement = deployer.experiment.laid_out(layout, deployer.placement)
        except IsthmusError as refusal:  # The next look finds the former placement.
            _log.warning("the placement stays", reason=str(refusal))
            return
        deployer.want(placement, Chooser.ENGINE, give_up_seconds)

    async def pin(
        self, cuts: tuple[int, ...] | None = None, bits: int | None = None, staleness: int | None = None
    ) -> None:
        """Fix cuts, bit width or K, each that is given, until the next call, and let the engine choose the others.

        Raises PlanError for a value out of range or never measured, and then nothing is changed.
        """
        async with self._alone:
            await self._constrain(cuts, bits, staleness)
            self._pinned = cuts, bits, staleness
        _log.info("pinned", cuts=cuts, bits=bits, staleness=staleness)

    async def use(self, planner: str) -> None:
        """Choose the free values again (`greedy`), or keep the present deployment (`fixed`), whatever the engine has proposed.

        Raises PlanError if the pins leave nothing to choose, and then nothing is changed.
        """
        async with self._alone:
            before, self._unpinned_space = self._unpinned_space, self._configured_space
            held = None
            if planner == FIXED:
                held = self.engine.layout
                self._unpinned_space = self._holding(held)
            try:
                await self._constrain(*self._pinned)
            except PlanError:
                self._unpinned_space = before
                raise
            self.planner = planner
            self._withdraws = held is not None and self._proposal is not None
        _log.info("planner set", planner=planner, held=str(held) if held else None)

    async def _constrain_as_pinned(self) -> None:
        """Let the engine choose among other workers as far as the pins leave it free: all, those of bits and K, or none.

        Cuts may have been pinned for other workers.
        """
        for pins in (self._pinned, (None, *self._pinned[1:]), (None, None, None)):
            try:
                await self._constrain(*pins)
            except PlanError:
                continue
            return

    def _holding(self, layout: Layout) -> SearchSpace:
        return replace(self.engine.question, space=self._configured_space).holding(layout)

    async def _constrain(self, cuts: tuple[int, ...] | None, bits: int | None, staleness: int | None) -> None:
        """Let the engine choose from the present workers' space as far as pins leave it free. Raises PlanError, and changes
        nothing."""
        unpinned = self._unpinned_space
        only, layout = unpinned.cuts if cuts is None else cuts, unpinned.only if cuts is None else None
        present = None if len(self._present) == len(self.engine.names) else self._present
        pinned = replace(
            unpinned,
            cuts=only,
            workers=present if unpinned.workers is None else unpinned.workers,
            bits=unpinned.bits if bits is None else (bits,),
            widths=unpinned.widths if cuts is None and bits is None else None,
            staleness=unpinned.staleness if staleness is None else staleness,
            allow_edge_only=unpinned.allow_edge_only or only == (self._blocks,),  # a named cut is intended
            only=layout and layout.pinned(bits, staleness),
        )
        await asyncio.to_thread(self.engine.constrain, pinned)

    def _note_measuring(self, waited_seconds: float) -> None:
        self.measuring_seconds += waited_seconds
        self._metrics.measuring_seconds.inc(waited_seconds)

    def _export(self) -> None:
        for name, ratio in self.engine.prediction_ratios.items():
            if ratio:  # 0 before there were enough steps
                self._metrics.prediction_ratio.set(ratio, name)
        if (outcome := self.engine.outcome()) is not None:
            self._metrics.step_seconds.set(outcome.predicted_seconds_per_step, "predicted")
            self._metrics.step_seconds.set(outcome.modelled_seconds_per_step, "modelled")
            self._metrics.step_seconds.set(outcome.measured_seconds_per_step, "measured")

    def _log_outcome(self) -> None:
        if (outcome := self.engine.outcome()) is not None:
            _log.info(
                "deployment measured",
                deployment=str(self.engine.layout),
                predicted_seconds_per_step=round(outcome.predicted_seconds_per_step, 4),
                modelled_seconds_per_step=round(outcome.modelled_seconds_per_step, 4),
                measured_seconds_per_step=round(outcome.measured_seconds_per_step, 4),
                steps=outcome.steps,
            )


def make_decision_loop(
    experiment: Experiment,
    profile: Profile | None,
    statistics: Statistics,
    metrics: EngineMetrics,
    profile_with: Callable[[str], Profile] | None = None,
) -> DecisionLoop | None:
    """Make the decision loop of a run; None without a profile, and where a policy moves the cut.

    profile_with: see `DecisionLoop`; left out, all candidates are taken for the profile's trainer. Raises PlanError if the
    profile leaves nothing to choose.
    """
    config = experiment.config
    if profile is None or policy_of(config) == EDGEMOVE:
        return None
    engine = make_engine(experiment, profile)
    known, names = engine.question.profile, profile.names[1:]
    if has_candidates(config):
        names = tuple(trainer.name for trainer in config.all_trainers)
        profile_with = profile_with or (lambda name: known.named((AGENT, name)))
    return DecisionLoop(engine, statistics, metrics, make_link_probes(config, names), profile_with)
