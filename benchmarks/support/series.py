"""An agent that trains one configuration after another: `python -m benchmarks.support.series`, driven by `Trainings`.

For comparisons of many deployments: each is a session of its own through the same code as `edge-agent run`, and only the
start of the process, long on a slow device, happens once. It also trains without any trainer, for what that is compared
with. Knows nothing of what is compared.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any

from edge_agent.experiment.experiment import Experiment
from edge_agent.training.choosers import Chooser
from edge_agent.training.deployer import Deployer
from edge_agent.training.events import Progressed, SessionOpened
from edge_agent.training.statistics import Statistics
from isthmus import EdgeConfig, run_training
from shared.config import load_config
from shared.errors import IsthmusError
from shared.events import Events
from shared.model.features import features_of
from shared.training.device import prepare_process
from shared.training.losses import LossHead
from shared.training.stage import lone_stage

NO_MOVES: Mapping[int, int] = {}


@dataclass(frozen=True)
class Training:
    """A finished run."""

    ends: list[float]
    """Times at which each step was done in the cloud, as the edge heard of it, or alone; seconds."""
    uplink_bits_per_second: float | None
    downlink_bits_per_second: float | None
    """Rate that the agent measured last; None where it knew too little."""


class Trainings:
    """The other end of such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        flags: Sequence[str],
        moves: Mapping[int, int] = NO_MOVES,
        *,
        alone: bool = False,
        on_begun: Callable[[], object] = lambda: None,
    ) -> Training:
        """Train once. flags: section.key=value. Raises IsthmusError when the process has ended.

        moves: the cut to ask for once so many steps are done. alone: all blocks in that process, with neither trainer nor link;
        whatever `flags` say of a deployment is left out. on_begun: called when the first step is done; on a slow device
        opening a session takes many seconds.
        """
        self._ask({"flags": list(flags), "moves": list(moves.items()), "alone": alone})
        self._answer()
        on_begun()
        return Training(**self._answer())

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise IsthmusError(f"the agent ended with {self._process.wait()}; what it wrote stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def trainings(popen: Callable[..., subprocess.Popen[Any]]) -> Iterator[Trainings]:
    """Start the process where `popen` starts processes; it ends with the context."""
    process = popen(
        [sys.executable, "-m", "benchmarks.support.series"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Trainings(process)
    finally:
        process.terminate()
        process.communicate()


def trained(config: EdgeConfig, moves: Mapping[int, int], on_begun: Callable[[], object]) -> Training:
    """One run with the trainer, from this process."""
    recorder = _Recorder(moves, on_begun)
    asyncio.run(run_training(config, recorder.subscribe))
    return Training(recorder.ends, *recorder.rates)


class _Recorder:
    """Notes when each step of a run ends, and moves the cut after those that `moves` names."""

    def __init__(self, moves: Mapping[int, int], on_begun: Callable[[], object]) -> None:
        self.ends: list[float] = []
        self.rates: tuple[float | None, float | None] = None, None
        """Up and down, as last measured, in bits per second."""
        self._moves = moves
        self._on_begun = on_begun
        self._deployer: Deployer | None = None

    def subscribe(self, events: Events) -> None:
        """Read the run's events."""
        events.subscribe(SessionOpened, self._keep_deployer)
        events.subscribe(Progressed, lambda event: self._note(event.statistics))

    def _keep_deployer(self, event: SessionOpened) -> None:
        self._deployer = event.run.deployer

    def _note(self, progress: Statistics) -> None:
        """A step has ended, unless it is something else that changed."""
        if progress.steps <= len(self.ends):
            return
        self.ends.append(time.monotonic())
        if len(self.ends) == 1:
            self._on_begun()
        self.rates = progress.uplink_bits_per_second, progress.downlink_bits_per_second
        if self._deployer is not None and progress.steps in self._moves:
            cut, deployer = self._moves[progress.steps], self._deployer
            deployer.want(deployer.experiment.cut_at((cut,), deployer.placement), Chooser.OPERATOR)


def trained_alone(config: EdgeConfig, on_begun: Callable[[], object]) -> Training:
    """The same training wholly in this process: the same batches, network, loss and updates, one step after the other."""
    prepare_process(config.compute.threads)  # as the agent does
    experiment = Experiment(config)
    chain = experiment.chain
    stage = lone_stage(chain, 0, len(chain.blocks), experiment.recipe, experiment.held.device)
    head = LossHead(experiment.recipe.loss, None)
    ends = []
    for batch in experiment.loader.iterate(0, experiment.steps):
        graph = stage.forward(batch.step, batch.features, input_gradient=False)
        _, gradients = head.gradient(features_of(graph.outputs), batch.labels)
        stage.backward(graph, gradients)
        stage.update(batch.step)
        ends.append(time.monotonic())
        if len(ends) == 1:
            on_begun()
    return Training(ends, None, None)


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer each line that asks for a run with two, an empty object after the first step and the results."""

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    def begun() -> None:
        answer({})

    for line in requests:
        request = json.loads(line)
        config = load_config(EdgeConfig, None, request["flags"], environ={})
        if request["alone"]:
            answer(asdict(trained_alone(config, begun)))
        else:
            answer(asdict(trained(config, dict(request["moves"]), begun)))


def main() -> None:
    """Serve on the standard streams; whatever else prints goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        serve(sys.stdin, sys.__stdout__ or sys.stderr)


if __name__ == "__main__":
    main()
