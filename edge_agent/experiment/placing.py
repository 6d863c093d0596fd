"""The placement that a configuration names, and its permissions: the one place where placements are judged on this device.

It contacts no trainer.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from edge_agent.config import EdgeConfig
from edge_agent.deployment_config import Schedule
from edge_agent.experiment.candidates import has_candidates
from edge_agent.experiment.exchanging import exchange_of
from edge_agent.experiment.privacy import check_labels_may_leave, permissions_of
from edge_agent.experiment.workload import Workload
from shared.codec import codec_by_name
from shared.errors import ConfigError
from shared.execution.recalled import all_kept_bytes
from shared.model.build import check_cut
from shared.model.chain import Chain
from shared.placement import (
    AGENT,
    Cargo,
    Placement,
    Route,
    Rows,
    Source,
    Tile,
    check,
    crossings,
    gradient_crossings,
    kept_stage,
    load_placement,
    parse_range,
    spread,
    two_workers,
    weight_crossings,
)
from shared.training.held_state import changing_blocks


def placement_of(workload: Workload) -> Placement:
    """Build the placement of the first step, valid and permitted, with the codec of every crossing.

    Its `labels` name the workers that may have labels under any later placement, too. Raises ConfigError for an invalid
    placement, ModelError for an impossible `deployment.cut`, and DataError for labels that may not leave.
    """
    config = workload.config
    if config.member is not None:
        placement = _of_member(workload, config.deployment.cut or len(workload.chain.blocks))
    elif config.placement.file is not None:
        placement = _from_file(config.placement.file, workload)
    elif config.placement.given:
        placement = _from_ranges(workload)
    else:
        placement = _from_cut(workload)
    return completed(placement, workload, placement.labels)


def member_on(workload: Workload, cut: int) -> Placement:
    """Build the placement of a member with so many blocks on the device, as `placement_of` does."""
    return completed(_of_member(workload, cut), workload, None)


def check_permitted(placement: Placement, workload: Workload, labels_to: frozenset[str] | None) -> None:
    """Refuse an invalid placement, or one that sends samples or labels to a worker that may not have them.

    labels_to: workers that may have labels, by the configuration's placement; None permits them to the worker with the
    loss. Raises ConfigError, and DataError for labels that are the inputs themselves.
    """
    privacy = workload.config.privacy
    model = workload.facts
    check(placement, model, permissions_of(privacy, labels_to))
    _check_room_for_features(placement, workload)
    _check_judges(placement, workload)
    workload.bound.check(placement, workload.chain, in_group=workload.config.member is not None)
    receivers = dict.fromkeys(one.receiver for one in crossings(placement, model) if one.cargo is Cargo.LABEL)
    check_labels_may_leave(workload.labels_that_are_inputs, receivers, privacy)


def _check_room_for_features(placement: Placement, workload: Workload) -> None:
    recipe, checkpoints = workload.recipe, workload.config.checkpoints
    if not recipe.recalls or kept_stage(placement, workload.facts).worker != AGENT:
        return
    if checkpoints.location == "none":
        raise ConfigError(
            "placement: this device has all blocks and would keep features (deployment.recall), and checkpoints.location is "
            '"none", so they have no folder; name one'
        )
    count = all_kept_bytes(workload.chain, recipe, placement, workload.facts)
    if count > checkpoints.max_recalled_bytes:
        raise ConfigError(
            f"placement: this device has all blocks and would keep {count} bytes of features and labels (deployment.recall); "
            f"checkpoints.max_recalled_bytes gives {checkpoints.max_recalled_bytes}"
        )


def _check_judges(placement: Placement, workload: Workload) -> None:
    heads = [tile.worker for tile in placement.holders(placement.blocks - 1)]
    if len(heads) > 1 and workload.one_judge:
        raise ConfigError(
            f"placement: {' and '.join(heads)} would each compute the loss {workload.recipe.loss.name!r} of a part of the "
            f"batch, and {workload.one_judge}; let one worker have the last block for all samples"
        )


def completed(placement: Placement, workload: Workload, labels_to: frozenset[str] | None) -> Placement:
    """The placement with the codec of every crossing. labels_to and errors as for `check_permitted`."""
    check_permitted(placement, workload, labels_to)
    config, chain, model = workload.config, workload.chain, workload.facts
    crossing = (*crossings(placement, model), *gradient_crossings(placement, model))
    configured = configured_codecs(config)
    routes = {Route(one.sender, one.receiver, one.cargo) for one in crossing if one.cargo in configured}
    codecs = {route: configured[route.cargo] for route in sorted(routes, key=str)}
    _check_widths(config, chain, placement.codecs.values())
    return replace(placement, codecs={**codecs, **_codecs_of_member(placement, workload), **placement.codecs})


def _codecs_of_member(placement: Placement, workload: Workload) -> dict[Route, str]:
    """Return the codecs of what a member exchanges with its group, by route; none where tensors go as they are."""
    if (group := workload.config.member) is None:
        return {}
    # Trainers agree on the codec of weights with all members, also with those that get none.
    trainers = dict.fromkeys(placement.owners.values())
    found = {Route(trainer, AGENT, Cargo.WEIGHTS): group.weights_codec for trainer in trainers}
    pushed = (one for one in weight_crossings(placement, workload.facts) if one.cargo is Cargo.WEIGHT_GRADIENT)
    found |= {Route(one.sender, one.receiver, one.cargo): group.codec for one in pushed}
    return {route: name for route, name in found.items() if name != "raw"}


def configured_codecs(config: EdgeConfig) -> dict[Cargo, str]:
    """Return the codecs of the configuration at the first step, by the kind of tensor."""
    return {cargo: schedule.pairs[0][1] for cargo, schedule in codec_schedules(config).items()}


def codec_schedules(config: EdgeConfig) -> dict[Cargo, Schedule[str]]:
    """Return the schedules of codecs, by the kind of tensor."""
    deployment, learning_rate = config.deployment, config.training.schedule
    return {
        Cargo.FEATURE: deployment.codec_schedule(learning_rate),
        Cargo.ERROR_GRADIENT: deployment.downlink_codec_schedule(learning_rate),
    }


def _from_cut(workload: Workload) -> Placement:
    config, chain = workload.config, workload.chain
    is_planned = len(config.all_trainers) > 1 and not has_candidates(config)
    if not config.all_trainers or is_planned:
        return _alone(workload)
    cut = config.deployment.cut or _default_cut(chain)
    check_cut(cut, chain)
    return two_workers(
        AGENT,
        config.all_trainers[0].name,
        cut,
        len(chain.blocks),
        workload.batch_size,
        staleness=config.deployment.first_staleness,
    )


def _default_cut(chain: Chain) -> int:
    """The middle of the model, or the next cut that parts no blocks which use a weight together; L where there is none."""
    blocks = len(chain.blocks)
    middle = min(max(chain.first_boundary, blocks // 2), blocks)
    return next(cut for cut in range(middle, blocks + 1) if not chain.parts_tied(0, cut))


def _alone(workload: Workload) -> Placement:
    """All blocks on this device: for good where there is no trainer, and else until the run is planned."""
    config, blocks = workload.config, len(workload.chain.blocks)
    if config.all_trainers and config.deployment.cut is not None:
        raise ConfigError(
            f"deployment.cut is {config.deployment.cut}, which is the cut of two workers, and trainers names several; leave it "
            "out, or say in [placement] which blocks each of them runs"
        )
    if config.deployment.cut not in (None, blocks):
        raise ConfigError(
            f"deployment.cut is {config.deployment.cut} and trainers is empty, so nobody has the blocks from there on; give a "
            f"[trainer], or leave deployment.cut out"
        )
    whole = Rows(0, workload.batch_size)
    return Placement(
        version=0,
        blocks=blocks,
        batch_size=workload.batch_size,
        workers=(AGENT, *(trainer.name for trainer in config.all_trainers)),
        tiles=(Tile(AGENT, 0, blocks, whole),),
        sources=(Source(AGENT, whole),),
        staleness=config.deployment.first_staleness,
    )


def _of_member(workload: Workload, cut: int) -> Placement:
    """So many blocks on this device as copies of those that trainers own for the group, and the others at the first trainer.

    Raises ConfigError for a group that cannot be, and ModelError for an impossible cut.
    """
    config, chain, whole = workload.config, workload.chain, Rows(0, workload.batch_size)
    trainers, blocks = tuple(trainer.name for trainer in config.all_trainers), len(chain.blocks)
    check_cut(cut, chain)
    if len(trainers) > 1 and workload.recipe.model_clip_norm is not None:
        raise ConfigError(
            'training.optimizer.clip is "model", whose norm is that of all blocks, and several trainers have them nowhere '
            'together; use "block", or one trainer'
        )
    block_bytes = {
        block: sum(value.nbytes for value in chain.blocks[block].named_parameters().values())
        for block in changing_blocks(chain)
    }
    return Placement(
        version=0,
        blocks=blocks,
        batch_size=workload.batch_size,
        workers=(AGENT, *trainers),
        tiles=tuple(
            tile for tile in (Tile(AGENT, 0, cut, whole), Tile(trainers[0], cut, blocks, whole)) if tile.blocks
        ),
        sources=(Source(AGENT, whole),),
        owners=spread(block_bytes, chain.together, trainers),
        staleness=config.deployment.first_staleness,
        exchange=exchange_of(config.group, [block.name for block in chain.blocks]),
    )


def _from_ranges(workload: Workload) -> Placement:
    config, blocks = workload.config, len(workload.chain.blocks)
    section, whole = config.placement, Rows(0, workload.batch_size)
    return Placement(
        version=0,
        blocks=blocks,
        batch_size=workload.batch_size,
        workers=(AGENT, *(trainer.name for trainer in config.all_trainers if trainer.name in section.blocks)),
        tiles=tuple(
            Tile(worker, *parse_range(text).bounds(blocks), whole)
            for worker, texts in section.blocks.items()
            for text in texts
        ),
        sources=(Source(AGENT, whole),),
        labels=None if section.labels is None else frozenset({section.labels}),
        staleness=config.deployment.first_staleness,
    )


def _from_file(path: Path, workload: Workload) -> Placement:
    config, staleness = workload.config, workload.config.deployment.first_staleness
    placement = load_placement(path, len(workload.chain.blocks), workload.batch_size, staleness)
    known = [AGENT, *(trainer.name for trainer in config.all_trainers)]
    if unknown := [worker for worker in placement.workers if worker not in known]:
        raise ConfigError(f"{path}: worker {unknown[0]!r} is not configured; there are {', '.join(known)}")
    if placement.staleness != staleness:
        raise ConfigError(
            f"{path}: staleness is {placement.staleness}, and deployment.staleness is {staleness}; leave it out of the file"
        )
    check_named_codecs(placement, config)
    return placement


def _check_widths(config: EdgeConfig, chain: Chain, of_file: Iterable[str]) -> None:
    """Refuse to narrow features of float64 without an explicit codec. Raises ConfigError.

    of_file: codecs that a file of a placement names.
    """
    wide = any(spec.dtype is torch.float64 for specs in chain.features[1:] for spec in specs)
    engine, schedules = config.engine, codec_schedules(config)
    keys = {Cargo.FEATURE: "deployment.codec", Cargo.ERROR_GRADIENT: "deployment.downlink_codec"}
    named = [(key, name) for cargo, key in keys.items() for name in schedules[cargo].values]
    for key, name in (*named, *((f"{config.placement.file}: a codec", name) for name in of_file)):
        if wide and _narrows_float64(name):
            raise ConfigError(
                f"{key} is {name}, which would narrow the float64 features of {config.model.factory!r} to "
                "32 bits; set it to raw, which sends them as they are, or to a codec with fewer bits"
            )
    if wide and engine.profile is not None and config.member is None and 32 in engine.bits:
        raise ConfigError(
            f"engine.bits holds 32, which would narrow the float64 features of {config.model.factory!r}; leave it out"
        )


def _narrows_float64(name: str) -> bool:
    """Tell whether a codec that is meant to lose nothing loses part of a float64 tensor."""
    codec, elements = codec_by_name(name), 64
    return not codec.spec.lossy and codec.encoded_bytes((elements,), torch.float64) < elements * torch.float64.itemsize


def check_named_codecs(placement: Placement, config: EdgeConfig) -> None:
    """Refuse unknown codecs of a document, codecs of tensors that follow a schedule, which would set another, and in a recorded
    run those that draw random numbers.

    Raises ConfigError.
    """
    schedules = codec_schedules(config)
    for route, name in placement.codecs.items():
        try:
            spec = codec_by_name(name).spec
        except ConfigError as unknown:
            raise ConfigError(f"placement: {unknown}") from None
        if spec.stochastic and config.output.record:
            raise ConfigError(
                f"placement: codec {name} is named, which rounds at random, and output.record is true, so no replay has its "
                "weights; name another codec, or leave output.record out"
            )
        if route.cargo in schedules and len(schedules[route.cargo].pairs) > 1:
            raise ConfigError(
                f"placement: a codec for {route.cargo} from {route.sender} to {route.receiver} is named, and those of the "
                "configuration follow a schedule; leave one of them out"
            )
