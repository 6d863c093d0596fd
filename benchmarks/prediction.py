"""Accuracy of the cost model on the time of a step, and quality of its choice: `python -m benchmarks.prediction`.

Real agent and trainer in two network namespaces, the agent on a share of a core. `edge-agent profile` measures the pair
once, over 100 Mbit/s. From that and from what plain TCP carries over the shaped link the cost model
predicts; the error that it makes from the rates that the agent saw in the run itself stands beside. Prediction: seconds per
step beside what real runs take (goal: median error 10 %, worst 20 %). Decision: the planner's choice beside every cut and the
deployments predicted best, each run (goal: within 5 % of the best of them).
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.net import Link, Measure, linked_namespaces, slowed_device
from benchmarks.rivals.pair import fixed, over
from benchmarks.support.arguments import benchmark_parser
from benchmarks.support.deployed import Deployed
from benchmarks.support.machine import machine
from benchmarks.support.processes import trainer_across
from benchmarks.support.report import Spread, seconds_per_step, write_json
from benchmarks.support.series import Training, Trainings, trainings
from edge_agent.planning import (
    Layout,
    Profile,
    Question,
    Rates,
    SearchSpace,
    greedy,
    load_profile,
    parts_of,
)
from shared.errors import IsthmusError

MEDIAN_GOAL, WORST_GOAL, DECISION_GOAL = 0.10, 0.20, 0.05
EDGE_SHARE = 0.5
"""The edge's share of a core's time."""
REPEATS = 30
PROFILED_AT = (100e6, 100e6)
"""Bits per second up and down."""
BITS, MOST_STALENESS = (4, 8, 32), 5
HORIZON_STEPS = 1000
"""Long, so that Eq. 12 is about what a step takes when the pipeline is full."""
PREDICTED = {
    (5e6, 20e6): [
        Deployed(1, 2, 8),
        Deployed(2, 0, 8),
        Deployed(3, 5, 32),
        Deployed(4, 1, 32),
    ],
    (20e6, 50e6): [
        Deployed(1, 0, 32),
        Deployed(2, 1, 8),
        Deployed(3, 3, 4),
        Deployed(4, 0, 8),
    ],
    (100e6, 10e6): [
        Deployed(1, 5, 8),
        Deployed(2, 2, 32),
        Deployed(3, 0, 32),
        Deployed(4, 5, 4),
    ],
}
"""The links by uplink and downlink, in bits per second."""
DECIDED = ((5e6, 20e6), (20e6, 50e6))
FINALISTS, FINALS = 3, 6
"""The best of them run so many times more, and the choice with them, in turn: the luckiest of many runs is no measure."""
TOP = 10
"""So many of the deployments predicted best are run for the decision, besides the best at each cut."""
TCP_SECONDS = 2.0
WARM_UP_STEPS, LEAST_STEPS, MOST_STEPS, MEASURED_SECONDS = 10, 36, 180, 5.0
LEAST_SEGMENT_STEPS = 5


@dataclass(frozen=True)
class Case:
    """One deployment on one link."""

    uplink: float
    downlink: float
    deployment: Deployed
    predicted_seconds: float
    phase_seconds: tuple[float, float, float, float]
    measured_seconds: Spread
    modelled_seconds: float | None
    """Predicted from the rates that the agent measured in that run, where it came to know them."""

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_seconds / self.measured_seconds.median - 1


@dataclass(frozen=True)
class Choice:
    """The planner's choice on one link, and the best of all that ran."""

    uplink: float
    downlink: float
    chosen: Deployed
    best: Deployed
    loss: Spread
    """Loss of the choice: its time over that of the best, less 1; of runs soon after each other, for the machine's pace
    drifts."""
    cases: list[Case]


def flags(address: str, deployment: Deployed, steps: int) -> list[str]:
    """The agent's settings."""
    return [
        f"trainer.address={address}",
        'model.factory="shared.model.zoo:residual_cnn"',
        "model.kwargs={width=32}",
        'data.train={factory="benchmarks.networks:RepeatedDigits", kwargs={copies=8}}',
        "training.epochs=1",
        f"training.max_steps={steps}",
        "training.evaluate_every_epochs=0",
        f"deployment.cut={deployment.cut}",
        f"deployment.staleness={deployment.staleness}",
        f"deployment.codec={'fp32' if deployment.bits == 32 else f'uniform{deployment.bits}'}",
        "compute.threads=1",
        "compute.device=cpu",
        "log.level=warning",
    ]


@dataclass(frozen=True)
class Bench:
    """The pair and the link between them."""

    link: Link
    address: str
    agent: Trainings
    profile: Profile
    plain: Measure

    def train(self, deployment: Deployed, steps: int) -> Training:
        """One run."""
        return self.agent.run(flags(self.address, deployment, steps))

    def reshape(self, uplink: float, downlink: float) -> Rates:
        """Make the link carry so many bits per second; what plain TCP carries."""
        self.link.shape(uplink, downlink)
        return Rates(self.plain.uplink(TCP_SECONDS), self.plain.downlink(TCP_SECONDS))

    def question(self) -> Question:
        """Return what is asked of the planners."""
        return Question(self.profile, SearchSpace(BITS), HORIZON_STEPS)

    def phases(self, layout: Layout, rates: Rates) -> tuple[float, float, float, float]:
        """Return the seconds of the device, the uplink, the trainer and the downlink in a step."""
        parts = parts_of(Question(self.profile), layout, over(self.profile, rates))
        edge, trainer = (parts.workers.get(name, 0.0) for name in self.profile.names)
        up, down = next(iter(parts.links.values()), (0.0, 0.0))
        return edge, up, trainer, down

    def measure(self, nominal: tuple[float, float], rates: Rates, deployment: Deployed) -> Case:
        """Predict one deployment and run it."""
        plan = fixed(self.question(), over(self.profile, rates), deployment.layout(self.profile))
        predicted = plan.seconds_per_step
        counted = round(MEASURED_SECONDS / predicted)
        segment = (deployment.staleness + 1) * -(-LEAST_SEGMENT_STEPS // (deployment.staleness + 1))
        steps = min(MOST_STEPS, max(LEAST_STEPS, WARM_UP_STEPS + counted)) + deployment.staleness + 1
        run = self.train(deployment, steps)
        seconds = seconds_per_step(run.ends, WARM_UP_STEPS, deployment.staleness + 1, segment)
        modelled = None
        if run.uplink_bits_per_second is not None and run.downlink_bits_per_second is not None:
            seen = Rates(run.uplink_bits_per_second, run.downlink_bits_per_second)
            modelled = fixed(
                self.question(), over(self.profile, seen), deployment.layout(self.profile)
            ).seconds_per_step
        measured = Spread.of(seconds)
        case = Case(*nominal, deployment, predicted, self.phases(plan.layout, rates), measured, modelled)
        print(*row(case), file=sys.stderr, flush=True)
        return case

    def decide(self, nominal: tuple[float, float], rates: Rates) -> Choice:
        """Ask the planner, and run its choice and what else could be best."""
        chosen = Deployed.of(greedy(self.question(), over(self.profile, rates)).layout)
        cases = {each: self.measure(nominal, rates, each) for each in self.rivals(rates) | {chosen}}
        first = sorted(cases, key=lambda each: cases[each].measured_seconds.median)[:FINALISTS]
        finalists = dict.fromkeys([chosen, *first])
        rounds = [{each: self.measure(nominal, rates, each) for each in finalists} for _ in range(FINALS)]
        seconds = {each: [run[each].measured_seconds.median for run in rounds] for each in finalists}
        # Every other round tells which is best, and the rest by how much: told by the same rounds, luck would count as better.
        best = min(finalists, key=lambda each: statistics.median(seconds[each][::2]))
        judged = zip(seconds[chosen][1::2], seconds[best][1::2], strict=True)
        loss = Spread.of([mine / others - 1 for mine, others in judged])
        for each in finalists:
            runs = sorted((run[each] for run in rounds), key=lambda case: case.measured_seconds.median)
            cases[each] = runs[len(runs) // 2]
        return Choice(*nominal, chosen, best, loss, sorted(cases.values(), key=lambda case: case.predicted_seconds))

    def rivals(self, rates: Rates) -> set[Deployed]:
        """The deployments predicted best, and the best at each cut."""
        cuts = range(1, len(self.profile))
        everything = [Deployed(*each) for each in product(cuts, range(MOST_STALENESS + 1), BITS)]
        plans = [fixed(self.question(), over(self.profile, rates), each.layout(self.profile)) for each in everything]
        plans.sort(key=lambda plan: plan.seconds_per_step)
        best = {
            cut: next(Deployed.of(plan.layout) for plan in plans if plan.layout.tiles[0].stop == cut) for cut in cuts
        }
        return {*best.values(), *(Deployed.of(plan.layout) for plan in plans[:TOP])}


@contextmanager
def bench(edge_share: float = EDGE_SHARE, more: Sequence[str] = (), kept: Path | None = None) -> Iterator[Bench]:
    """Trainer, link, an agent on so much of a core's time, and the profile of both.

    more: settings besides `flags`. kept: file of a profile that was measured before, or that is to be kept there.
    """
    with (
        linked_namespaces("foresee") as link,
        slowed_device(edge_share) as device,
        tempfile.TemporaryDirectory(prefix="isthmus-") as folder,
        trainer_across(link) as address,
    ):
        path = kept or Path(folder, "profile.json")
        if not path.exists():
            link.shape(*PROFILED_AT)
            settings = [f"--set={flag}" for flag in [*flags(address, Deployed(1, 0, 32), MOST_STEPS), *more]]
            command = ["profile", f"--repeats={REPEATS}", f"--out={path.absolute()}", *settings]
            done = device.run(link.edge.command([sys.executable, "-m", "edge_agent.main", *command]), stdout=sys.stderr)
            if done.returncode != 0:
                raise IsthmusError(f"the profile ended with {done.returncode}")
        with trainings(lambda args, **kwargs: device.popen(link.edge.command(args), **kwargs)) as agent:
            yield Bench(link, address, agent, load_profile(path), Measure(link))


def row(case: Case) -> list[str]:
    """A case for a table."""
    return [
        f"{case.uplink / 1e6:.0f} / {case.downlink / 1e6:.0f}",
        str(case.deployment.cut),
        str(case.deployment.staleness),
        str(case.deployment.bits),
        "  ".join(f"{seconds * 1e3:5.1f}" for seconds in case.phase_seconds),
        f"{case.predicted_seconds * 1e3:.1f}",
        case.measured_seconds.show(1e3),
        f"{case.error:+.1%}",
        "" if case.modelled_seconds is None else f"{case.modelled_seconds / case.measured_seconds.median - 1:+.1%}",
    ]


def table(cases: list[Case]) -> Table:
    """Cases as rows."""
    columns = (
        "link, Mbit/s",
        "cut",
        "K",
        "bits",
        "T1     T2     T3     T4",
        "predicted",
        "measured",
        "error",
        "own rates",
    )
    made = Table(*columns)
    for case in cases:
        made.add_row(*row(case))
    return made


def verdict(kept: bool) -> str:
    """A goal's end."""
    return "kept" if kept else "MISSED"


def main() -> None:
    """Predict and measure, choose and measure, and print both."""
    parser = benchmark_parser("prediction", __doc__)
    parser.add_argument("--only", choices=("prediction", "decision"), help="one of the two")
    parser.add_argument(
        "--profile", type=Path, help="the pair's profile, measured into this file where it is not there"
    )
    arguments = parser.parse_args()
    console = Console(width=150)
    console.print(f"{machine()}; the agent on {EDGE_SHARE:g} of a core; milliseconds, median (quartiles)")
    predicted: list[Case] = []
    choices: list[Choice] = []
    with bench(kept=arguments.profile) as ready:
        for nominal, deployments in PREDICTED.items():
            rates = ready.reshape(*nominal)
            if arguments.only != "decision":
                predicted += [ready.measure(nominal, rates, each) for each in deployments]
            if arguments.only != "prediction" and nominal in DECIDED:
                choices.append(ready.decide(nominal, rates))
    if predicted:
        console.print(table(predicted))
        errors = [abs(case.error) for case in predicted]
        median, worst = statistics.median(errors), max(errors)
        console.print(
            f"prediction: median error {median:.1%} (goal {MEDIAN_GOAL:.0%}: {verdict(median <= MEDIAN_GOAL)}), "
            f"worst {worst:.1%} (goal {WORST_GOAL:.0%}: {verdict(worst <= WORST_GOAL)})"
        )
    for choice in choices:
        console.print(table(choice.cases))
        console.print(
            f"decision at {choice.uplink / 1e6:.0f} / {choice.downlink / 1e6:.0f} Mbit/s: {choice.chosen}, "
            f"{choice.loss.show(100.0)} % slower than the best of these, {choice.best} (goal {DECISION_GOAL:.0%}: "
            f"{verdict(choice.loss.median <= DECISION_GOAL)})"
        )
    write_json(arguments.json, "prediction", profile=ready.profile, predicted=predicted, choices=choices)


if __name__ == "__main__":
    main()
