"""Trainers that a run asks: those that the placement names. No model is loaded, so whether the blocks fit stays
open."""

from edge_agent.config import EdgeConfig
from edge_agent.doctor.finding import Finding, advise, fix
from shared.client.config import TrainerAddressConfig
from shared.errors import ConfigError
from shared.placement import load_placement


def check_placement(config: EdgeConfig) -> tuple[list[Finding], tuple[TrainerAddressConfig, ...]]:
    """Return advice on the placement, if there is any, and the trainers that are to be examined."""
    try:
        asked = _trainers_of_a_run(config)
    except ConfigError as error:
        return [fix("placement", str(error), "correct this file, or leave placement.file out")], config.all_trainers
    if len(asked) > 1 and not config.placement.given:
        remedy = "say in [placement] which blocks each of them runs before edge-agent run; profile needs none"
        return [advise("placement", f"none, for {len(asked)} trainers", remedy)], asked
    return [], asked


def _trainers_of_a_run(config: EdgeConfig) -> tuple[TrainerAddressConfig, ...]:
    """The trainers that the placement names, or all where there is none. Raises ConfigError for a file that is none."""
    section = config.placement
    if section.file is not None:
        workers = load_placement(section.file, blocks=0, batch_size=config.data.batch_size).workers
    elif section.given:
        workers = tuple(section.blocks)
    else:
        return config.all_trainers
    return tuple(trainer for trainer in config.all_trainers if trainer.name in workers)


def next_down_the_chain(
    config: EdgeConfig, trainer: TrainerAddressConfig, behind: tuple[TrainerAddressConfig, ...]
) -> TrainerAddressConfig | None:
    """The trainer whose blocks follow those of this one; None where [placement] does not say so by ranges."""
    blocks = config.placement.blocks
    ends = {text.rpartition(":")[2] for text in blocks.get(trainer.name, ())}
    follows = [
        other for other in behind if ends & {text.partition(":")[0] for text in blocks.get(other.name, ())} - {""}
    ]
    return follows[0] if follows else None
