"""The links from the device as a run's engine sees them: by its training streams, or by probes where these hardly use one."""

from collections.abc import Mapping

from edge_agent.adaptation.link_probe import LinkProbe
from edge_agent.planning import Engine
from edge_agent.training.statistics import Statistics
from shared.client.link_measurement import LinkRates

TELLING_STEPS = 20
"""Number of steps after which a stream that has shown no rates sends too little to show any."""


class SeenLinks:
    """The links of one run. Used on its event loop."""

    def __init__(self, here: str, statistics: Statistics, probes: Mapping[str, LinkProbe]) -> None:
        """here: the first worker. probes: of its links to the others, by their names."""
        self._here, self._statistics, self._probes = here, statistics, probes

    def known(self, engine: Engine, seconds: float, *, is_moving: bool) -> dict[str, LinkRates]:
        """Return what is known of the links from here that the layout uses, or of all of them if it uses none: from the
        training streams, or from probes where these hardly use a link. Empty until one was measured."""
        layout = engine.layout
        used, is_alone = layout.partners(self._here), len(layout.workers) == 1
        found = {}
        for name in used or engine.names[1:]:
            streamed, probe = self._streamed(name), self._probes[name]
            if is_moving:
                probe.end()
            elif is_alone:
                if _may_use_links(engine):
                    probe.want(seconds)
            elif streamed.uplink is not None and streamed.downlink is not None:
                probe.forget()
            elif self._statistics.steps >= TELLING_STEPS:
                probe.want(seconds)
            link = probe.found.merged_over(streamed)
            if link.uplink is not None and link.downlink is not None:
                found[name] = link
        return found

    def end(self) -> None:
        """End the probes that are under way, because training needs the links."""
        for probe in self._probes.values():
            probe.end()

    async def close(self) -> None:
        """End the probes. On return, none is under way."""
        for probe in self._probes.values():
            await probe.close()

    def are_measured(self, engine: Engine) -> bool:
        """Tell whether the profile says what the link from here carries, and training has had the time to say it."""
        workers = engine.layout.workers
        link = engine.question.profile.way(*workers[:2]) if len(workers) > 1 else None
        return link is not None and link.uplink is not None and self._statistics.steps >= TELLING_STEPS

    def _streamed(self, name: str) -> LinkRates:
        """Return what the training stream to a worker shows of its link."""
        rates, hop = self._statistics.link_rates, (self._here, name)
        return LinkRates(rates.get(hop), rates.get(hop[::-1]), self._statistics.link_trips.get(hop))


def _may_use_links(engine: Engine) -> bool:
    """Tell whether any layout may be chosen but the first worker alone."""
    question = engine.question
    return len(question.permitted) > 1 and question.space.cuts != (len(question.profile),)
