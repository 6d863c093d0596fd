"""A chain whose blocks sleep: what only time decides is measured as exactly on a busy machine as on a quiet one."""

import json
from pathlib import Path

from benchmarks.chain.machines import NAMES, Machines
from benchmarks.chain.measured import Model, chain_document, measured_model, parsed, placement_flags, planned
from benchmarks.support.live import LiveRun
from edge_agent.planning import Layout, Profile, Rates

STALENESS = 4
BITS = (8, 32)
FORWARD_SECONDS, BACKWARD_SECONDS, BLOCKS = 0.010, 0.020, 12
"""So long that what computing takes besides, some milliseconds a step, is little beside it."""
FEATURE_FLOATS = (1000, 1000, 500, 500, 500, 250, 250, 250, 125, 125, 125)
"""Numbers of one sample at each cut: small features lie deep, as in most networks."""
BITS_PER_SECOND = 8e6
"""Rate of every link; a feature takes 64 ms at the widest cut."""
PAYLOAD = 0.956
"""Share of a rate that TCP's headers leave."""
_FLAGS = (
    'model.factory="benchmarks.networks:timed_blocks"',
    f"model.kwargs={{amounts={[[FORWARD_SECONDS, BACKWARD_SECONDS]] * BLOCKS}, feature_floats={[*FEATURE_FLOATS]}}}",
    'data.train={factory="benchmarks.networks:RandomImages", kwargs={size=1, samples=320000}}',
    "data.batch_size=32",
    "training.epochs=1000",
    "training.evaluate_every_epochs=0",
)


def sleeping_model() -> Model:
    """Blocks that take alike."""
    return measured_model(_FLAGS, [FORWARD_SECONDS + BACKWARD_SECONDS] * BLOCKS)


class SleepingChain:
    """Three machines, each at pace 1 and linked alike until something happens to them."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self._machines, self._folder = machines, folder
        self._model = sleeping_model()
        self._paces = dict.fromkeys(NAMES, 1.0)
        self._first_link = BITS_PER_SECOND
        self.restore()

    def restore(self) -> None:
        """Have all as at first."""
        for name in NAMES:
            self.slow_down(name, 1.0)
        self._first_link = BITS_PER_SECOND
        self._machines.mesh.shape(BITS_PER_SECOND)

    def slow_down(self, name: str, pace: float) -> None:
        """Have a machine take so many times as long from now on."""
        self._paces[name] = pace
        self._machines.set_pace(name, pace)

    def narrow(self, share: float) -> None:
        """Have the device's link to the next machine carry so much of what it did."""
        self._first_link = BITS_PER_SECOND * share
        self._machines.mesh.shape(self._first_link, NAMES[:2])

    def chain(self) -> Profile:
        """The file of what there is now."""
        return parsed(self._document())

    def best(self) -> Layout:
        """The best for what there is now."""
        return planned(self.chain(), BITS, STALENESS).layout

    def adapt(self) -> LiveRun:
        """Begin a run whose engine knows what there is now."""
        path = self._folder / "chain.json"
        path.write_text(json.dumps(self._document()))
        return self._train(f"engine.profile={path}", f"engine.bits={[*BITS]}")

    def keep(self) -> LiveRun:
        """Begin a run with the best for what there is now, which it keeps."""
        return self._train()

    def _train(self, *flags: str) -> LiveRun:
        placed = placement_flags(self._folder, self.best(), STALENESS, "uniform8")
        permitted = f"privacy.inputs_to={json.dumps(NAMES[1:])}"  # blocks that sleep hand on what they get
        return self._machines.train([*self._model.flags, *placed, permitted, *flags])

    def _document(self) -> dict[str, object]:
        usual, first = (Rates(PAYLOAD * rate, PAYLOAD * rate, 0.001) for rate in (BITS_PER_SECOND, self._first_link))
        document = chain_document(self._model, self._paces, usual)
        links = [{**document["links"][0], "uplink": first.uplink, "downlink": first.downlink}, *document["links"][1:]]
        return document | {"links": links}
