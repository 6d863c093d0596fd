"""Groups whose blocks sleep: members and a trainer as processes of their own, on a star of shaped links.

What only time decides is measured as exactly on a busy machine as on a quiet one. A layer of a file is a block that sleeps for
the layer's seconds and has weights of its bytes; the links have the rates of its transfers.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from benchmarks.chain.machines import PROCESS_FLAGS
from benchmarks.chain.sleeping import PAYLOAD
from benchmarks.net import Mesh, starred_namespaces
from benchmarks.support.processes import Agent, AgentRun, trainer_process
from edge_agent.planning.profile import SCHEMA
from edge_agent.planning.schedules import Layers

GROUP, TRAINER = "line", "trainer"
MOST_MEMBERS = 16
BATCH = 4
WARM_UP_STEPS = 3
"""First steps, which measure the links."""


def _ignore() -> None:
    pass


class SleepingGroup:
    """Members of a group with blocks that sleep, and their trainer."""

    def __init__(self, layers: Layers, members: Sequence[str], mesh: Mesh, address: str, folder: Path) -> None:
        """address: of the trainer."""
        self.layers, self.members, self.mesh = layers, members, mesh
        self._address = address
        self._file = folder / "layers.json"
        self._file.write_text(json.dumps(layers_document(layers)))

    def shape(self, layers: Layers) -> None:
        """Have each link carry at the rates at which the layers of a file travel alone, from now on."""
        up, down = rates(layers)
        for name in self.members:
            self.mesh.ends[name, TRAINER].shape(up / PAYLOAD)
            self.mesh.ends[TRAINER, name].shape(down / PAYLOAD)

    def step_seconds(
        self, strategy: str, steps: int, codec: str, *, told: bool = True, opened: Callable[[], object] = _ignore
    ) -> list[float]:
        """Seconds of each step of a run with a strategy, as its first member has them, without those at its begin.

        codec: of gradients and of weights. told: members have the file of layers; else they measure. opened: called when the
        first member has its session.
        """
        with ThreadPoolExecutor(len(self.members)) as pool:

            def run(rank: int) -> AgentRun:
                agent = self._agent(rank, strategy, steps, codec, told)
                if rank == 0:
                    opened()
                return agent.wait()

            first, *_ = list(pool.map(run, range(len(self.members))))
        return [end - begin for begin, end in pairwise(first.step_ends()[WARM_UP_STEPS:-1])]

    def _agent(self, rank: int, strategy: str, steps: int, codec: str, told: bool) -> Agent:
        file = f', layers="{self._file}"' if told else ""
        coded = f'codec="{codec}", weights_codec="{codec}"'
        flags = [
            *PROCESS_FLAGS,
            *model_flags(self.layers, steps),
            f'group={{name="{GROUP}", rank={rank}, schedule="{strategy}"{file}, {coded}}}',
            'privacy.gradients_to=["trainer"]',
        ]
        wrapper = self.mesh.machines[self.members[rank]].command([])
        return Agent(self._address, flags, wrapper)


def model_flags(layers: Layers, steps: int) -> list[str]:
    """An agent's flags for the blocks that sleep as the layers compute, and a run of so many steps."""
    return [
        'model.factory="benchmarks.networks:weighted_blocks"',
        f"model.kwargs={{amounts={[list(each) for each in amounts(layers)]}, sizes={list(layers.bytes)}}}",
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{size=1, samples={BATCH * steps}}}}}',
        f"data.batch_size={BATCH}",
        "training.epochs=1",
        "training.evaluate_every_epochs=0",
    ]


def amounts(layers: Layers) -> list[tuple[float, float]]:
    """Seconds of the forward and of the backward of each layer."""
    return list(zip(layers.forward_seconds, layers.backward_seconds, strict=True))


@contextmanager
def sleeping_group(layers: Layers, members: int, folder: Path) -> Iterator[SleepingGroup]:
    """Start a trainer and make the links of so many members, each shaped for the rates at which its layers travel alone."""
    names = [f"member{rank}" for rank in range(members)]
    with starred_namespaces("group", TRAINER, names) as mesh:
        hub = mesh.machines[TRAINER]
        flags = ("server.accept_inputs=true", f'groups=[{{name="{GROUP}", size={members}}}]')
        listen = f"{hub.address}:0"
        with trainer_process(*PROCESS_FLAGS, *flags, wrapper=hub.command([]), listen=listen) as address:
            group = SleepingGroup(layers, names, mesh, address, folder)
            group.shape(layers)
            yield group


def rates(layers: Layers) -> tuple[float, float]:
    """Bits per second of pushes and of pulls, by the seconds of all layers."""
    bits = 8 * sum(layers.bytes)
    return bits / sum(layers.push_seconds), bits / sum(layers.pull_seconds)


def layers_document(layers: Layers) -> dict[str, object]:
    """The file of layers."""
    columns = {
        "name": layers.names,
        "bytes": layers.bytes,
        "pull_seconds": layers.pull_seconds,
        "forward_seconds": layers.forward_seconds,
        "backward_seconds": layers.backward_seconds,
        "push_seconds": layers.push_seconds,
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {
        "schema": SCHEMA,
        "model": layers.model,
        "message_seconds": layers.message_seconds,
        "layers": rows,
    }
