"""Times of runs of blocks out of a worker's latency table, in the place of measurements."""

from collections.abc import Sequence

from edge_agent.experiment.building import Experiment
from edge_agent.profiling.chain_parts import Run
from shared.errors import ConfigError, PlanError
from shared.prediction import LatencyTable, vector
from shared.training.policies import Replay, policy_of_stage


def times_in_table(worker: str, table: LatencyTable, runs: Sequence[Run], experiment: Experiment) -> dict[Run, float]:
    """Seconds of those runs that the table has.

    Raises PlanError for a table of something else, ConfigError where a run would have a replay, which tables are without.
    """
    config, blocks = experiment.config, len(experiment.chain.blocks)
    for what, ours, theirs in (
        ("model", config.model.factory, table.model),
        ("batch size", experiment.batch_size, table.batch_size),
        ("layers", blocks, table.layers),
    ):
        if ours != theirs:
            raise PlanError(f"the table of {worker!r} has {what} {theirs}, and this chain has {ours}")
    backward, staleness = config.deployment.backward, experiment.placement.staleness
    for _, stop in runs:
        if policy_of_stage(backward, staleness, ends_model=stop == blocks) is Replay:
            raise ConfigError(
                f"a latency table is without the replay that {worker!r} does with deployment.staleness {staleness} and "
                f'deployment.backward "{backward}"; leave that --table out, or choose another deployment.backward'
            )
    seconds = {sample.layers: sample.seconds for sample in table.samples}
    vectors = {run: vector(*run, blocks) for run in runs}
    return {run: seconds[layers] for run, layers in vectors.items() if layers in seconds}
