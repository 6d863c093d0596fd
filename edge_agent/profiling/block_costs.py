"""Costs of the blocks of a model: the bytes that cross each cut and that moving a block carries, and the times of a
table."""

from collections.abc import Sequence
from typing import NamedTuple

from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import ProfiledBlock
from edge_agent.planning.prediction import LatencyTable, vector
from edge_agent.profiling.rounds import Run
from shared.errors import ConfigError, PlanError
from shared.model.chain import Block, Chain
from shared.model.features import specs_bytes
from shared.training import block_state
from shared.training.measure import measure_stage, untouched
from shared.training.optimizers import optimizer_bytes
from shared.training.policies import Replay, policy_of_stage
from shared.training.stage import lone_stage


class TriedBlock(NamedTuple):
    """A block that was run alone."""

    seconds: float
    """Seconds of one step on this device."""
    bytes: int
    """Bytes that moving it carries: parameters, buffers and all that the optimizer may keep for them; 0 where it is
    static."""


def try_blocks(experiment: Experiment) -> list[TriedBlock]:
    """Run each block alone for a step, one after the other; their weights stay as they are. Computes."""
    with untouched(experiment.chain.blocks):
        return [_try_block(experiment, block) for block in experiment.chain.blocks]


def _try_block(experiment: Experiment, block: Block) -> TriedBlock:
    chain, first = experiment.chain, block.index
    stage = lone_stage(chain, first, first + 1, experiment.recipe, experiment.held.device)
    wanted = chain.gradients_return(first)
    (measured,) = measure_stage(stage, chain.features[first], input_gradient=wanted, repeats=1)
    state = stage.held.block_tensors(first)
    kept = sum(tensor.nbytes for name, tensor in state.items() if not name.startswith("optimizer/"))
    kept += optimizer_bytes(block.named_parameters().values(), experiment.recipe.optimizer_of_states)
    return TriedBlock(measured.total, 0 if block_state.is_static(block) else kept)


def profiled_blocks(chain: Chain, tried: Sequence[TriedBlock]) -> tuple[ProfiledBlock, ...]:
    """Return the blocks as a profile has them."""
    return tuple(
        ProfiledBlock(block.name, one.bytes, trained_bytes(block))
        for block, one in zip(chain.blocks, tried, strict=True)
    )


def trained_bytes(block: Block) -> int:
    """Return the bytes of the parameters of a block that learn."""
    return sum(parameter.nbytes for parameter in block.named_parameters().values() if parameter.requires_grad)


def crossing_bytes(chain: Chain) -> tuple[list[float], list[float]]:
    """Bytes of the float32 feature that crosses each cut 0..L, and of its error gradient."""
    sizes = [*map(specs_bytes, chain.features[:-1]), 0]  # edge-only: no more than the output crosses
    answers = [
        sum(chain.features[cut][slot].bytes for slot in chain.gradient_slots(cut)) for cut in range(len(sizes) - 1)
    ]
    return [float(size) for size in sizes], [float(size) for size in (*answers, 0)]


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
