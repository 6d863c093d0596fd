"""Distance of a step from the bound that its slowest part sets: `python -m benchmarks.bound [--compute sleep|matmul]
[--json PATH]`.

Real agent and trainer in two network namespaces; the link is shaped so that a feature takes T2 and an error gradient T4.
The blocks take T1 and T3: they wait ("sleep", the default: exact on a busy machine, and all but the kernels is real) or
compute ("matmul"). For each mix of T1 to T4 and each K: seconds per step over max(T_max, T_sum / (K + 1)), the T's
measured alone. T1 holds the replay where K > 0; encoding and decoding are counted in none of them. Goal: 1.05.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.net import Link, Measure, linked_namespaces
from benchmarks.networks import multiply
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.machine import machine
from benchmarks.support.processes import run_agent, trainer_process
from benchmarks.support.report import Spread, seconds_per_step, write_json
from edge_agent.experiment.experiment import Experiment
from isthmus import EdgeConfig
from shared.config import load_config
from shared.model.features import features_of
from shared.registry import LossConfig
from shared.training.device import prepare_process
from shared.training.losses import LossHead
from shared.training.policies import KeptGraph, Replay
from shared.training.stage import Stage, lone_stage

GOAL = 1.05
BATCH = 32
STALENESS = (0, 1, 2, 5)
FEATURE_FLOATS = 2000
"""The feature of one sample: 256 kB a batch at 32 bits."""
WARM_UP_STEPS, SEGMENT_STEPS, SEGMENTS = 20, 6, 8
"""A stretch that is measured holds whole rounds of K + 1 steps, for every K here."""


@dataclass(frozen=True)
class Mix:
    """The intended times of the four phases, in seconds per step; T1 without replay."""

    name: str
    edge: float
    uplink: float
    cloud: float
    downlink: float


MIXES = (
    Mix("edge", 0.060, 0.020, 0.020, 0.020),
    Mix("uplink", 0.020, 0.060, 0.020, 0.020),
    Mix("cloud", 0.020, 0.020, 0.060, 0.020),
    Mix("downlink", 0.020, 0.020, 0.020, 0.060),
    Mix("both links", 0.015, 0.060, 0.015, 0.060),
    Mix("both computers", 0.060, 0.015, 0.060, 0.015),
    Mix("balanced, slow", 0.080, 0.080, 0.080, 0.080),
    Mix("balanced", 0.040, 0.040, 0.040, 0.040),
    Mix("balanced, quick", 0.015, 0.015, 0.015, 0.015),
)


@dataclass(frozen=True)
class Alone:
    """The phases measured alone, in seconds per step."""

    edge: float
    uplink: float
    cloud: float
    downlink: float

    def bound(self, staleness: int) -> float:
        """max(T_max, T_sum / (K + 1)): what a step takes at best."""
        phases = (self.edge, self.uplink, self.cloud, self.downlink)
        return max(*phases, sum(phases) / (staleness + 1))


@dataclass(frozen=True)
class Case:
    """One mix at one K, measured."""

    mix: Mix
    staleness: int
    alone: Alone
    bound_seconds: float
    step_seconds: Spread
    ratio: Spread


def flags(mix: Mix, staleness: int, compute: str, amount: Callable[[float], float]) -> list[str]:
    """The agent's settings. A replayed forward costs the edge a second one: T1 is 1/4 forward, 1/2 backward and, where
    there is a replay, 1/4 once more; without, the forward is 1/2."""
    forward = mix.edge / (4 if staleness else 2)
    edge = [amount(forward), amount(mix.edge / 2)]
    cloud = [amount(mix.cloud / 2), amount(mix.cloud / 2)]
    steps = WARM_UP_STEPS + SEGMENT_STEPS * SEGMENTS + staleness + 2
    return [
        'model.factory="benchmarks.networks:timed_halves"',
        f'model.kwargs={{compute="{compute}", edge={edge}, cloud={cloud}, feature_floats={FEATURE_FLOATS}}}',
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{size=1, samples={BATCH * steps}}}}}',
        f"data.batch_size={BATCH}",
        "training.epochs=1",
        "training.evaluate_every_epochs=0",
        f"deployment.staleness={staleness}",
        "deployment.cut=1",
        "compute.threads=1",
        "compute.device=cpu",
    ]


def computers_alone(chosen: list[str], staleness: int, steps: int = 12) -> tuple[float, float]:
    """Median seconds of T1 and T3: the stages of that configuration in a loop, in this process, without link or codec."""
    experiment = Experiment(load_config(EdgeConfig, None, chosen, environ={}))
    chain, cut = experiment.chain, experiment.deployment.edge_blocks
    stage = Stage(experiment.held, 0, cut)
    policy = (Replay if staleness else KeptGraph)(stage)
    cloud = lone_stage(chain, cut, len(chain.blocks), experiment.recipe, torch.device("cpu"))
    head = LossHead(LossConfig(), None)
    edge_seconds, cloud_seconds = [], []
    for batch in experiment.loader.iterate(0, steps):
        began = time.perf_counter()
        features = policy.forward(batch.step, batch.features)
        forwarded = time.perf_counter()
        graph = cloud.forward(batch.step, features, input_gradient=True)
        gradients = cloud.backward(graph, head.gradient(features_of(graph.outputs), batch.labels)[1])
        cloud.update(batch.step)
        computed = time.perf_counter()
        policy.backward(batch.step, gradients)
        stage.update(batch.step)
        edge_seconds.append(time.perf_counter() - computed + forwarded - began)
        cloud_seconds.append(computed - forwarded)
    return Spread.of(edge_seconds).median, Spread.of(cloud_seconds).median


def links_alone(measure: Measure) -> tuple[float, float]:
    """Seconds of T2 and T4: the bytes of a feature over what plain TCP carries just now."""
    bits = BATCH * FEATURE_FLOATS * 4 * 8
    return bits / measure.uplink(3.0), bits / measure.downlink(3.0)


def shape(link: Link, mix: Mix) -> None:
    """Make a feature take T2 and an error gradient T4; TCP's headers leave 95.6 % of a rate for payload."""
    bits = BATCH * FEATURE_FLOATS * 4 * 8 / 0.956
    link.shape(bits / mix.uplink, bits / mix.downlink)


def measure_case(link: Link, address: str, mix: Mix, staleness: int, compute: str, links: tuple[float, float]) -> Case:
    """Run an agent and compare."""
    amount = products_in if compute == "matmul" else float
    chosen = flags(mix, staleness, compute, amount)
    edge_alone, cloud_alone = computers_alone(chosen, staleness)
    alone = Alone(edge_alone, links[0], cloud_alone, links[1])
    run = run_agent(address, chosen, link.edge.command([]))
    seconds = seconds_per_step(run.ends("edge", "backward"), WARM_UP_STEPS, staleness + 1, SEGMENT_STEPS)
    bound = alone.bound(staleness)
    return Case(mix, staleness, alone, bound, Spread.of(seconds), Spread.of([step / bound for step in seconds]))


def products_in(seconds: float) -> float:
    """Return the number of `multiply`'s products that take so long here and now."""
    multiply(20)
    began = time.perf_counter()
    multiply(100)
    return max(1, round(seconds / (time.perf_counter() - began) * 100))


@contextmanager
def deployed(
    name: str, *, delay_seconds: float = 0.0, prepare: Callable[[Link], object] = lambda _link: None
) -> Iterator[tuple[Link, str]]:
    """A link of this round trip, not shaped, and a trainer on its cloud side with its address.

    prepare: called with the link before anything runs on it.
    """
    with linked_namespaces(name, delay_seconds=delay_seconds) as link:
        prepare(link)
        with trainer_process(
            "compute.threads=1",
            "compute.device=cpu",
            wrapper=link.cloud.command([]),
            listen=f"{link.cloud.address}:0",
        ) as address:
            yield link, address


def row(case: Case) -> list[str]:
    """A case for the table."""
    alone = "  ".join(f"{seconds * 1e3:5.1f}" for seconds in asdict(case.alone).values())
    verdict = "" if case.ratio.median <= GOAL else "MISSED"
    return [
        case.mix.name,
        str(case.staleness),
        alone,
        f"{case.bound_seconds * 1e3:.1f}",
        case.step_seconds.show(1e3),
        case.ratio.show(digits=3),
        verdict,
    ]


def main() -> None:
    """Measure every case and print the table."""
    parser = benchmark_parser("bound", __doc__)
    parser.add_argument("--compute", choices=("sleep", "matmul"), default="sleep", help="what blocks do")
    parser.add_argument("--mix", action="append", help="only mixes of this name (default: all)")
    parser.add_argument("--staleness", type=int, action="append", help=f"only this K (default: {STALENESS})")
    arguments = parser.parse_args()
    prepare_process(1)  # as agent and trainer do
    console = Console(width=150)
    console.print(f"{machine()}; blocks {arguments.compute}; milliseconds, median (quartiles); goal: ratio <= {GOAL}")
    table = Table("bottleneck", "K", "T1     T2     T3     T4, alone", "bound", "step", "step / bound", "")
    cases = []
    with deployed("bound") as (link, address):
        measure = Measure(link)
        for mix in (mix for mix in MIXES if arguments.mix is None or mix.name in arguments.mix):
            shape(link, mix)
            links = links_alone(measure)
            for staleness in arguments.staleness or STALENESS:
                cases.append(measure_case(link, address, mix, staleness, arguments.compute, links))
                table.add_row(*row(cases[-1]))
                print(*row(cases[-1]), file=sys.stderr, flush=True)
    console.print(table)
    write_json(arguments.json, "bound", compute=arguments.compute, goal=GOAL, cases=cases)


if __name__ == "__main__":
    main()
