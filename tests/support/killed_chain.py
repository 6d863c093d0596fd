"""A chain of trainers and an agent, each a process of its own, to be killed and started again."""

import asyncio
import json
import shutil
from contextlib import ExitStack

from edge_agent.main import app as agent_app
from shared.client.config import TrainerAddressConfig
from shared.client.trainer import TrainerClient
from shared.config import LinkConfig
from tests.chaos import sides
from tests.support.commands import command
from tests.support.experiments import flags
from tests.support.forked import Forked
from tests.support.placement_kinds import PEERS_ALLOWED
from tests.support.running import ALLOWED, HASTE, agent_process, held_port

STEPS, CHECKPOINT_STEPS = 160, 10
NAMES = ("near", "far", "cloud")
CHOSEN = [
    *flags("cnn", "adamw"),
    f"training.max_steps={STEPS}",
    "training.epochs=10",
    "training.evaluate_every_epochs=0",
]
BLOCKS = 4
PLACED = {"edge": "0:1", "near": "1:2", "far": "2:3", "cloud": "3:"}
SECONDS = 2
"""Time for which a trainer may be away that is to be replaced."""


class Chain:
    """Trainers and an agent in a folder, to be killed and started again. A context."""

    def __init__(self, folder, replace_after_seconds=SECONDS, placed=PLACED, replicas=1, beside=(), keys=""):
        """replace_after_seconds: None to replace no trainer. placed: by the worker, its ranges of blocks, "" for none.

        beside: trainers that are configured, and that the placement does not name. keys: of each trainer, besides, in TOML.
        """
        self.folder = folder
        self._placed = placed
        self._beside = beside
        self._names = [name for name in NAMES if name in placed or name in beside]
        self.output = folder / "output"
        after = [] if replace_after_seconds is None else [f"replace_after_seconds={replace_after_seconds}"]
        self._keys = "".join(f", {key}" for key in [*after, *([keys] if keys else [])])
        self._replicas = replicas
        self._stack = ExitStack()
        self._trainers = {}

    def __enter__(self):
        self._ports = {name: self._stack.enter_context(held_port()) for name in self._names}
        for name in self._names:
            self.start(name)
        return self

    def __exit__(self, *_):
        for name in self._names:
            self.kill(name)
        self._stack.close()

    def start(self, name, *faults, settings=()):
        """Start a trainer, or start it again. faults: what happens to it, and when. settings: flags for it alone."""
        own = [f"server.listen=127.0.0.1:{self._ports[name]}", f"checkpoints.location={self.folder / name}"]
        more = [PEERS_ALLOWED, f"models.allowed={ALLOWED}", "control.listen=none", "compute.threads=1"]
        logs = f"checkpoints.step_log={self.folder / 'steps' / name}"
        arguments = ([*own, *more, logs, "compute.device=cpu", HASTE, *settings], name, list(faults), self.folder)
        self._trainers[name] = Forked(sides.trainer, *arguments)

    def kill(self, name):
        self._trainers[name].kill()
        self._trainers[name].wait()

    def document(self, placed=None):
        """Return the document that places blocks so. placed: as in the beginning, where it is left out."""
        tiles = []
        for worker, ranges in (placed or self._placed).items():
            for first, stop in (blocks.split(":") for blocks in ranges.split()):
                tiles.append({"worker": worker, "blocks": [int(first), int(stop or BLOCKS)]})
        named = [name for name in self._names if name not in self._beside or name in (placed or ())]
        return {"schema": "isthmus.placement/v1", "workers": ["edge", *named], "tiles": tiles}

    def port(self, name):
        return self._ports[name]

    def wait_until_dead(self, name):
        self._trainers[name].wait(120)

    def flags(self):
        trainers = ", ".join(
            f'{{name="{name}", address="127.0.0.1:{port}"{self._keys}}}' for name, port in self._ports.items()
        )
        file = self.folder / "placement.json"
        file.write_text(json.dumps(self.document()))
        chosen = [
            *CHOSEN,
            f"placement.file={file}",
            f"trainers=[{trainers}]",
            "compute.threads=1",
            "compute.device=cpu",
        ]
        chosen += [f"control.listen={self.control}", f"checkpoints.location={self.folder / 'edge'}"]
        chosen.append(f"checkpoints.step_log={self.folder / 'steps' / 'edge'}")
        return [*chosen, f"checkpoints.replicas={self._replicas}", f"checkpoints.every_steps={CHECKPOINT_STEPS}"]

    @property
    def control(self):
        return f"unix:{self.folder / 'agent.sock'}"

    def agent(self, *more):
        return self._stack.enter_context(agent_process(*self.flags(), *more, output=self.output))

    async def command(self, *arguments):
        """A command to the agent that runs in this process."""
        await asyncio.to_thread(command, agent_app, *map(str, arguments), f"--control={self.control}")

    async def until_it_answers(self, name):
        async with TrainerClient(TrainerAddressConfig(address=f"127.0.0.1:{self._ports[name]}"), LinkConfig()):
            pass

    def lose_disk(self, name):
        """Have nothing of what a trainer has written, which is killed."""
        shutil.rmtree(self.folder / name)

    def log(self, name):
        """Return the log of a trainer."""
        log = self.folder / f"{name}.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def replicas(self, name):
        """The replicas on a trainer's disk, the newest first."""
        found = (self.folder / name).glob("*/*/checkpoint-*.block-*.safetensors")
        return sorted(found, key=lambda path: int(path.name.split(".")[0].rpartition("-")[2]), reverse=True)
