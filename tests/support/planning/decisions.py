"""A decision loop with a deployer and a clock that tests set."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from edge_agent.adaptation.decisions import DecisionLoop
from edge_agent.adaptation.engine_inputs import adjust_profile
from edge_agent.adaptation.link_probe import LinkProbe
from edge_agent.config import EngineSection
from edge_agent.observability.metrics import EdgeMetrics, EngineMetrics
from edge_agent.observability.observer import RunObserver
from edge_agent.planning import Engine, EngineConfig, Profile, SearchSpace, feature_routes, layout_of
from edge_agent.training.statistics import Statistics, WorkerFigures
from shared.client.link_measurement import LinkRates
from shared.errors import ModelError
from shared.events import Events
from shared.placement import Deployment, Placement, at_cuts, two_workers
from shared.registry import codec_bits, codec_of_bits
from tests.support.planning.cases import MBIT
from tests.support.planning.engine_cases import LIGHT


class Laying:
    """An experiment of linear blocks, in which every layout is permitted."""

    def __init__(self, codec="fp32"):
        self.codec = codec

    def laid_out(self, layout, before):
        placed = layout.placement(before.workers)
        routes = feature_routes(placed)
        codecs = {route: codec_of_bits(layout.width(route.sender, route.receiver), self.codec) for route in routes}
        return replace(placed, version=before.version, codecs=codecs)

    def cut_at(self, cuts, before):
        if not all(0 < cut <= before.blocks for cut in cuts):
            raise ModelError("a cut out of range")
        placed = at_cuts(before, cuts)
        routes = feature_routes(placed)
        return replace(placed, codecs={route: before.codecs.get(route, self.codec) for route in routes})

    def deployment_of(self, placement):
        """Return the few numbers of two workers."""
        codec = next(iter(placement.codecs.values()), "")
        return Deployment(0, len(placement.tiles_of("edge")[0].blocks), placement.staleness, codec)


class Deployer:
    """Does at once what it is asked for; a move is done when the test says so."""

    def __init__(self, edge_blocks=1, staleness=3, codec="fp32", names=LIGHT.names):
        self.experiment = Laying(codec)
        self.have(two_workers(*names, edge_blocks, 4, 8, staleness=staleness), edge_blocks)
        self.wish = self.give_up_seconds = self.chosen_by = None

    def have(self, placement, *cuts):
        """Change it from outside."""
        self.placement = self.experiment.cut_at(cuts, placement)

    @property
    def deployment(self):
        return self.experiment.deployment_of(self.placement)

    @property
    def wanted(self):
        """Blocks that are to be on the edge."""
        return self.wish and self.experiment.deployment_of(self.wish).edge_blocks

    @property
    def moving(self):
        return self.wish is not None

    def want(self, placement, by, give_up_seconds=None):
        self.chosen_by = by
        if set(placement.tiles) == set(self.placement.tiles):
            self.placement, self.wish = placement, None
        else:
            self.wish, self.give_up_seconds = placement, give_up_seconds
        return True

    def move_if_requested(self, *, done=True):
        if done:
            self.placement = self.wish
        self.wish = None


def engine_of(profile: Profile, settings: EngineSection, placement: Placement, total_steps: int) -> Engine:
    """Return the engine of a run with these settings and this first placement."""
    config = EngineConfig(
        margin=settings.margin, dwell_seconds=settings.dwell_seconds, window_seconds=settings.window_seconds
    )
    space = SearchSpace(settings.bits, allow_edge_only=settings.allow_edge_only)
    adjusted = adjust_profile(profile, settings, "fp32")
    return Engine(adjusted, space, layout_of(placement, codec_bits), config, total_steps)


class Run:
    """A loop, its deployer, and a second after another."""

    def __init__(self, profile=LIGHT, settings=None, **deployment):
        self.statistics, self.deployer = Statistics(10_000), Deployer(**deployment)
        self.session = SimpleNamespace(members=SimpleNamespace(left_out=[]))
        self._registry = CollectorRegistry()
        settings = settings or EngineSection(bits=(2, 4, 8, 32), allow_edge_only=False)
        self.probed, self.probes = LinkRates(), 0
        engine = engine_of(profile, settings, self.deployer.placement, 10_000)
        probes = {profile.names[1]: LinkProbe(self._probe)}
        self.loop = DecisionLoop(engine, self.statistics, EngineMetrics(self._registry), probes)
        self.statistics.workers = {name: WorkerFigures(()) for name in profile.names}
        self.seconds, self.undone = 0.0, 0
        self.events = Events()
        metrics = EdgeMetrics(CollectorRegistry(), self.statistics)
        RunObserver(self.statistics, metrics, self.events)
        metrics.show_workers(self.statistics)
        self.round_trip_seconds = None
        self.statistics.is_flowing = True

    def shown_seconds(self, kind):
        """Seconds per step as the metrics have them: predicted, modelled or measured."""
        return self._registry.get_sample_value("isthmus_engine_step_seconds", {"kind": kind})

    @property
    def decisions(self):
        """Number of decisions that the metrics count."""
        names = {"isthmus_decisions_total"}
        return sum(one.value for each in self._registry.collect() for one in each.samples if one.name in names)

    async def wait(self, seconds):
        """So many looks, a second apart, in which no step is done."""
        for _ in range(seconds):
            self.seconds += 1.0
            self.undone += 1
            await self.loop.look(self, self.seconds)

    def went_back(self, steps):
        """So many steps were lost, and are done again."""
        self.undone += steps

    async def _probe(self):
        self.probes += 1
        return self.probed

    async def watch_with_probes(self, seconds, mbit, steps_a_second=1.0):
        """`watch`, with time for a probe after each look."""
        for _ in range(seconds):
            await self.watch(1, mbit, steps_a_second)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if self.deployer.moving:
                return

    def carry(self, mbit):
        """The training stream shows these rates from now on."""
        near, far = self.loop.engine.names
        self.statistics.link_rates = {(near, far): mbit * MBIT, (far, near): mbit * MBIT}
        self.statistics.link_trips = {(near, far): self.round_trip_seconds}

    async def watch(self, seconds, mbit, steps_a_second=1.0):
        """So many looks, a second apart; ends early when a move was asked for."""
        self.carry(mbit)
        for _ in range(seconds):
            self.seconds += 1.0
            self.statistics.steps = int(self.seconds * steps_a_second) - self.undone
            await self.loop.look(self, self.seconds)
            if self.deployer.moving:
                return
