"""The decision loop: it reports measurements to the engine once a second, and has the deployer do what the engine decides.

The engine (shared.planning.engine) is pure and decides. Clock, codecs by name, logs and metrics are here. Operators
take precedence: `pin` narrows the engine's choice, and `use` stops and starts the choice of the rest.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import structlog

from edge_agent.adaptation.engine_inputs import adjust_profile, search_space
from edge_agent.adaptation.link_probe import LinkProbe, make_link_probe
from edge_agent.adaptation.polling import polling
from edge_agent.config import EngineSection
from edge_agent.experiment.building import Experiment, has_one_cut
from edge_agent.observability.metrics import EngineMetrics
from edge_agent.training.choosers import Chooser
from edge_agent.training.open_run import PlacementController
from edge_agent.training.statistics import MeanSince, Statistics
from shared.client.link_measurement import LinkRates
from shared.errors import IsthmusError
from shared.placement import Placement
from shared.planner_names import FIXED, GREEDY
from shared.planning import (
    Decision,
    Engine,
    EngineConfig,
    Layout,
    Observation,
    Outcome,
    Profile,
    SearchSpace,
    layout_of,
)
from shared.registry import codec_bits

_log = structlog.get_logger(__name__)

TELLING_STEPS = 20
"""Number of steps after which a stream that has shown no rates sends too little to show any."""


class DecisionLoop:
    """The decisions of one run. All methods are called on its event loop."""

    def __init__(
        self,
        profile: Profile,
        settings: EngineSection,
        space: SearchSpace,
        placement: Placement,
        downlink_codec: str,
        total_steps: int,
        statistics: Statistics,
        metrics: EngineMetrics,
        probe: LinkProbe,
    ) -> None:
        """space: the engine's choices by the configuration. placement: the run's first one.

        downlink_codec: of the error gradients. Raises PlanError when the profile leaves nothing to choose.
        """
        self._configured_space = space
        self._unpinned_space = space
        """Choices before pins narrow them."""
        self._profile = adjust_profile(profile, settings, downlink_codec)
        self.planner = GREEDY
        self._engine = Engine(
            self._profile,
            self._configured_space,
            self._layout(placement),
            EngineConfig(
                margin=settings.margin, dwell_seconds=settings.dwell_seconds, window_seconds=settings.window_seconds
            ),
            total_steps,
        )
        self._pinned: tuple[tuple[int, ...] | None, int | None, int | None] = (None, None, None)
        """Cuts, bits and K that an operator fixes; None if free."""
        self._only_cuts: tuple[int, ...] | None = None
        """Cuts that the engine may not leave, because of a pin or the fixed planner; None if it may choose."""
        self._probe = probe
        self._statistics = statistics
        self._edge, self._encode, self._cloud = map(MeanSince, (statistics.edge, statistics.encode, statistics.cloud))
        self._metrics = metrics
        self._proposal: Decision | None = None

    @asynccontextmanager
    async def running(self, deployer: PlacementController) -> AsyncIterator[None]:
        """Decide for this deployer while the body runs."""
        try:
            async with polling(partial(self.look, deployer)):
                yield
        finally:
            await self._probe.close()
            self._log_outcome()

    def look(self, deployer: PlacementController, seconds: float) -> None:
        """Observe once, and act on the result. seconds: any clock that never goes back."""
        if not deployer.moving:
            self._report_deployment(deployer, seconds)
            if not (self._statistics.is_flowing and has_one_cut(deployer.placement)):
                self._engine.note_standstill(seconds)
                return
        rates, statistics = self._rates(deployer, seconds), self._statistics
        if rates.uplink is None or rates.downlink is None:
            return
        edge, trainer = self._profile.names
        decision = self._engine.observe(
            Observation(
                seconds,
                statistics.steps,
                {(edge, trainer): rates.uplink, (trainer, edge): rates.downlink},
                {(edge, trainer): rates.round_trip_seconds},
                {edge: self._edge_seconds(), trainer: self._cloud.take()},
            )
        )
        self._export()
        if decision is not None:
            self._apply(deployer, decision)

    def _rates(self, deployer: PlacementController, seconds: float) -> LinkRates:
        """Return the link's rates, from the training stream or, if the stream hardly uses the link, from a probe."""
        if deployer.moving:
            self._probe.end()
        elif deployer.deployment.edge_blocks == len(self._profile):
            if self._only_cuts != (len(self._profile),):
                self._probe.want(seconds)
        elif self._statistics.knows_the_link:
            self._probe.forget()
        elif self._statistics.steps >= TELLING_STEPS:
            self._probe.want(seconds)
        statistics = self._statistics
        measured = LinkRates(
            statistics.uplink_bits_per_second, statistics.downlink_bits_per_second, statistics.round_trip_seconds
        )
        return self._probe.found.merged_over(measured)

    def _edge_seconds(self) -> float | None:
        """Return T1 of the cost model: computing and, if the codec is not float32, encoding. None if nothing is new."""
        compute, encode = self._edge.take(), self._encode.take()
        if compute is None or not self._engine.layout.widths:
            return compute
        return None if encode is None else compute + encode

    def _report_deployment(self, deployer: PlacementController, seconds: float) -> None:
        """Report a deployment that the engine does not know yet: its own proposal, done or given up, or an operator's."""
        actual = self._layout(deployer.placement)
        if self._proposal is None and actual == self._engine.layout:
            return
        self._log_outcome()
        self._proposal = None
        for mean in (self._edge, self._encode, self._cloud):
            mean.take()  # earlier steps had another deployment
        self._engine.note_deployed(seconds, actual)

    def _apply(self, deployer: PlacementController, decision: Decision) -> None:
        wanted, today = decision.layout, self._engine.layout
        _log.info(
            "changing the deployment",
            today=str(today),
            wanted=str(wanted),
            home=str(self._engine.home),
            predicted_seconds_per_step=round(decision.seconds_per_step, 4),
            staying_seconds_per_step=round(decision.staying_seconds_per_step, 4),
            predicted_migration_seconds=round(decision.migration_seconds, 3),
        )
        self._metrics.decisions.inc()
        self._proposal = decision
        give_up_seconds = decision.abandon_after_seconds if wanted.tiles != today.tiles else math.inf
        if wanted.tiles != today.tiles:
            self._probe.end()
        try:
            placement = deployer.experiment.laid_out(wanted, deployer.placement)
        except IsthmusError as refusal:  # The next look finds the former placement.
            _log.warning("the placement stays", reason=str(refusal))
            return
        deployer.want(placement, Chooser.ENGINE, give_up_seconds if math.isfinite(give_up_seconds) else None)

    @staticmethod
    def _layout(placement: Placement) -> Layout:
        return layout_of(placement, codec_bits)

    def pin(self, cuts: tuple[int, ...] | None = None, bits: int | None = None, staleness: int | None = None) -> None:
        """Fix cuts, bit width or K, each that is given, until the next call, and let the engine choose the others.

        Raises PlanError for a value out of range or never measured, and then nothing is changed.
        """
        self._constrain(self._unpinned_space, cuts, bits, staleness)
        _log.info("pinned", cuts=cuts, bits=bits, staleness=staleness)

    def use(self, planner: str) -> None:
        """Choose the free values again (`greedy`), or keep the present deployment (`fixed`).

        Raises PlanError if the pins leave nothing to choose, and then nothing is changed.
        """
        held, space = None, self._configured_space
        if planner == FIXED:
            held = self._engine.layout if self._proposal is None else self._proposal.layout
            cuts, bits = (held.tiles[0].stop,), held.bits or space.bits
            space = replace(space, cuts=cuts, bits=bits, staleness=held.staleness)
        self._constrain(space, *self._pinned)
        self._unpinned_space, self.planner = space, planner
        _log.info("planner set", planner=planner, held=str(held) if held else None)

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome of the last change; None until a step was done since."""
        return self._engine.outcome()

    def _constrain(
        self, unpinned: SearchSpace, cuts: tuple[int, ...] | None, bits: int | None, staleness: int | None
    ) -> None:
        """Let the engine choose from this space as far as pins leave it free. Raises PlanError, and changes nothing."""
        only = unpinned.cuts if cuts is None else cuts
        pinned = replace(
            unpinned,
            cuts=only,
            bits=unpinned.bits if bits is None else (bits,),
            staleness=unpinned.staleness if staleness is None else staleness,
            allow_edge_only=unpinned.allow_edge_only or only == (len(self._profile),),  # a named cut is intended
        )
        self._engine.constrain(pinned)
        self._pinned, self._only_cuts = (cuts, bits, staleness), only

    def _export(self) -> None:
        if (outcome := self._engine.outcome()) is not None:
            self._metrics.step_seconds.set(outcome.predicted_seconds_per_step, "predicted")
            self._metrics.step_seconds.set(outcome.modelled_seconds_per_step, "modelled")
            self._metrics.step_seconds.set(outcome.measured_seconds_per_step, "measured")

    def _log_outcome(self) -> None:
        if (outcome := self._engine.outcome()) is not None:
            _log.info(
                "deployment measured",
                deployment=str(self._engine.layout),
                predicted_seconds_per_step=round(outcome.predicted_seconds_per_step, 4),
                modelled_seconds_per_step=round(outcome.modelled_seconds_per_step, 4),
                measured_seconds_per_step=round(outcome.measured_seconds_per_step, 4),
                steps=outcome.steps,
            )


def make_decision_loop(
    experiment: Experiment, profile: Profile, statistics: Statistics, metrics: EngineMetrics
) -> DecisionLoop:
    """Make the decision loop of a run of two workers. Raises PlanError if the profile leaves nothing to choose."""
    config = experiment.config
    return DecisionLoop(
        profile,
        config.engine,
        search_space(experiment, profile),
        experiment.placement,
        experiment.deployment.downlink_codec,
        experiment.steps,
        statistics,
        metrics,
        make_link_probe(config),
    )
