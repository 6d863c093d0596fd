"""A decision loop with a deployer and a clock that tests set."""

import asyncio
from dataclasses import replace

from prometheus_client import CollectorRegistry

from edge_agent.adaptation.decisions import DecisionLoop
from edge_agent.adaptation.link_probe import LinkProbe
from edge_agent.config import EngineSection
from edge_agent.observability.metrics import EngineMetrics
from edge_agent.training.statistics import Statistics
from shared.client.link_measurement import LinkRates
from shared.placement import Deployment
from shared.planning import SearchSpace
from tests.support.planning.cases import MBIT
from tests.support.planning.engine_cases import LIGHT


class Deployer:
    """Does at once what it is asked for; a move is done when the test says so."""

    def __init__(self, **deployment):
        self.deployment = Deployment(
            **({"edge_blocks": 1, "staleness": 3, "codec": "fp32", "downlink_codec": "fp32"} | deployment)
        )
        self.wanted = None
        self.give_up_seconds = None
        self.has_cut = True

    @property
    def moving(self):
        return self.wanted is not None

    def change(self, *, staleness=None, codec=None):
        self.deployment = replace(self.deployment, staleness=staleness, codec=codec)

    def move(self, cut, give_up_seconds=None):
        self.wanted, self.give_up_seconds = cut, give_up_seconds

    def move_if_requested(self, *, done=True):
        if done:
            self.deployment = replace(self.deployment, edge_blocks=self.wanted)
        self.wanted = None


class Run:
    """A loop, its deployer, and a second after another."""

    def __init__(self, profile=LIGHT, settings=None, **deployment):
        self.statistics, self.deployer = Statistics(10_000), Deployer(**deployment)
        self._registry = CollectorRegistry()
        settings = settings or EngineSection(bits=(2, 4, 8, 32), allow_edge_only=False)
        self.probed, self.probes = LinkRates(), 0
        deployment, probe = self.deployer.deployment, LinkProbe(self._probe)
        space = SearchSpace(settings.bits, allow_edge_only=settings.allow_edge_only)
        self.loop = DecisionLoop(
            profile,
            settings,
            space,
            deployment.codec,
            deployment,
            10_000,
            self.statistics,
            EngineMetrics(self._registry),
            probe,
        )
        self.seconds, self.undone = 0.0, 0
        self.statistics.is_flowing = True

    def shown_seconds(self, kind):
        """Seconds per step as the metrics have them: predicted, modelled or measured."""
        return self._registry.get_sample_value("isthmus_engine_step_seconds", {"kind": kind})

    @property
    def decisions(self):
        """Number of decisions that the metrics count."""
        return self._registry.get_sample_value("isthmus_decisions_total")

    def went_back(self, steps):
        """So many steps were lost, and are done again."""
        self.undone += steps

    async def _probe(self):
        self.probes += 1
        return self.probed

    async def watch_with_probes(self, seconds, mbit, steps_a_second=1.0):
        """`watch`, with time for a probe after each look."""
        for _ in range(seconds):
            self.watch(1, mbit, steps_a_second)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if self.deployer.moving:
                return

    def watch(self, seconds, mbit, steps_a_second=1.0):
        """So many looks, a second apart; ends early when a move was asked for."""
        self.statistics.uplink_bits_per_second = self.statistics.downlink_bits_per_second = mbit * MBIT
        for _ in range(seconds):
            self.seconds += 1.0
            self.statistics.steps = int(self.seconds * steps_a_second) - self.undone
            self.loop.look(self.deployer, self.seconds)
            if self.deployer.moving:
                return
