"""Validity of a placement: every rule with the sentence that refuses a breach of it."""

import json
from collections.abc import Iterator, Sequence

from shared.bounds import AGENT
from shared.errors import ConfigError
from shared.placement.derived import Crossing, crossings, stages, weight_crossings
from shared.placement.exchange import wrong_segments
from shared.placement.facts import ModelFacts, Permissions, ValueFacts
from shared.placement.gradients_tell import tells_inputs, tells_labels
from shared.placement.ranges import ranges_of
from shared.placement.tiles import Cargo, Placement, Rows

MAX_SHARED_PARTS = 4096
"""Largest number of parts of a placement beyond one a block. Its consequences take time and memory for each part."""


def check(placement: Placement, model: ModelFacts, permissions: Permissions) -> None:
    """Check a placement. Raises ConfigError with the first rule that it breaks, and a right value."""
    check_size(placement)
    rules = (
        _numbers,
        _workers,
        _grid,
        _one_tile_a_block,
        _together,
        _sources,
        _owners,
        _precisions,
        _merged,
        _exchange,
        _labels,
        _routes,
        _types,
        _recalled,
    )
    for rule in rules:
        for sentence in rule(placement, model):
            raise ConfigError(f"placement: {sentence}")
    for sentence in _enough_samples(placement, model):
        raise ConfigError(f"placement: {sentence}")
    for permitted in (_private, _telling):
        for sentence in permitted(placement, model, permissions):
            raise ConfigError(f"placement: {sentence}")


def check_size(placement: Placement) -> None:
    """Raises ConfigError for a placement of too many parts, before anything is looked at that grows with them."""
    if placement.parts > placement.blocks + MAX_SHARED_PARTS:
        raise ConfigError(
            f"placement: its tiles have {placement.parts} blocks together, each counted once for every worker that runs "
            f"it; of a model of {_counted(placement.blocks, 'block')} at most {placement.blocks + MAX_SHARED_PARTS} are "
            "taken; let fewer workers share blocks, or divide the model into fewer"
        )


def _numbers(placement: Placement, model: ModelFacts) -> Iterator[str]:
    if placement.blocks != len(model.blocks):
        yield f"it is made for {placement.blocks} blocks; the model has {len(model.blocks)}"
    if placement.batch_size < 1:
        yield f"the batch size is {placement.batch_size}; it must be 1 or more"
    if placement.staleness < 0:
        yield f"the staleness is {placement.staleness}; it must be 0 or more"


def _workers(placement: Placement, _model: ModelFacts) -> Iterator[str]:
    seen = set[str]()
    for worker in placement.workers:
        if worker in seen:
            yield f"worker {worker!r} is named twice; every worker has one name of its own"
        seen.add(worker)
    named = [("a tile", tile.worker) for tile in placement.tiles]
    named += [("a source", source.worker) for source in placement.sources]
    named += [("labels", worker) for worker in placement.labels or ()]
    named += [(f"the owner of block {block}", owner) for block, owner in placement.owners.items()]
    for what, worker in named:
        if worker not in seen:
            yield f"{what} names worker {worker!r}; the workers are {', '.join(placement.workers)}"


def _grid(placement: Placement, _model: ModelFacts) -> Iterator[str]:
    for tile in placement.tiles:
        where = f"a tile of {tile.worker!r}, blocks [{tile.first}, {tile.stop}) of samples {tile.rows},"
        if not 0 <= tile.first < tile.stop <= placement.blocks:
            yield f"{where} must hold at least one block of 0 to {placement.blocks - 1}"
        if not 0 <= tile.rows.begin < tile.rows.end <= placement.batch_size:
            yield f"{where} must hold at least one sample of 0 to {placement.batch_size - 1}"
    for block in range(placement.blocks):
        yield from _covered(f"block {block}", [tile.rows for tile in placement.holders(block)], placement.batch_size)


def _covered(what: str, all_rows: list[Rows], batch_size: int) -> Iterator[str]:
    """Describe the faults of rows, in the order of their begin, that should cover a batch once."""
    end = 0
    for rows in all_rows:
        if rows.begin > end:
            yield f"nobody has {what} on samples {Rows(end, rows.begin)}; every sample needs one worker"
        if rows.begin < end:
            overlap = Rows(rows.begin, min(end, rows.end))
            yield f"two workers have {what} on samples {overlap}; every sample needs one worker"
        end = max(end, rows.end)
    if end < batch_size:
        yield f"nobody has {what} on samples {Rows(end, batch_size)}; every sample needs one worker"


def _one_tile_a_block(placement: Placement, _model: ModelFacts) -> Iterator[str]:
    for block in range(placement.blocks):
        holders = [tile.worker for tile in placement.holders(block)]
        for worker in holders:
            if holders.count(worker) > 1:
                yield f"{worker!r} has two tiles with block {block}; a worker holds a block once"


def _together(placement: Placement, model: ModelFacts) -> Iterator[str]:
    for group in model.together:
        workers = {block: [tile.worker for tile in placement.holders(block)] for block in group}
        first = group[0]
        keeper = workers[first][0]
        other = next((block for block in group[1:] if workers[block] != [keeper]), group[1])
        if workers[first] == [keeper] == workers[other]:
            continue
        held = {block for tile in placement.tiles if tile.worker == keeper for block in tile.blocks}
        would_do = ", ".join(f'"{one}"' for one in ranges_of(held.union(group)))
        yield (
            f"block {first} ({model.blocks[first].name}) and block {other} ({model.blocks[other].name}) use one weight, so one "
            f"worker must have both, for all samples, as {keeper} = [{would_do}]"
        )


def _sources(placement: Placement, _model: ModelFacts) -> Iterator[str]:
    names = [source.worker for source in placement.sources]
    for name in names:
        if names.count(name) > 1:
            yield f"{name!r} is named as a source twice; the samples of a worker are one stretch"
    rows = sorted((source.rows for source in placement.sources), key=lambda rows: rows.begin)
    yield from _covered("the raw samples", rows, placement.batch_size)


def _owners(placement: Placement, _model: ModelFacts) -> Iterator[str]:
    for block in placement.owners:
        if not 0 <= block < placement.blocks:
            yield f"block {block} has an owner; the blocks are 0 to {placement.blocks - 1}"
    for block in range(placement.blocks):
        holders = [tile.worker for tile in placement.holders(block)]
        if len(holders) > 1 and block not in placement.owners:
            yield f"block {block} is shared by {', '.join(holders)} and has no owner; name the one that updates it"


def _precisions(placement: Placement, model: ModelFacts) -> Iterator[str]:
    """All parts of a block are computed in one precision, or they would be parts of nothing."""
    if not model.precisions:
        return
    named = dict(model.precisions)
    for block in sorted(placement.shared_blocks):
        by_precision = {named.get(tile.worker, "fp32"): tile.worker for tile in placement.holders(block)}
        if len(by_precision) > 1:
            one, other = list(by_precision.values())[:2]
            yield (
                f"block {block} ({model.blocks[block].name}) is shared by {one!r} and {other!r}, which compute in different "
                "precisions; give them one in training.precision, or the block to one of them"
            )


def _merged(placement: Placement, model: ModelFacts) -> Iterator[str]:
    """In a group, trainers own all that training changes."""
    if not model.merged:
        return
    if model.scaled:
        yield 'the loss is scaled (training.precision = "fp16"), and in a group it cannot be; use "bf16"'
    owners = {block: placement.owner(block) for block, facts in enumerate(model.blocks) if facts.changes}
    for block, owner in owners.items():
        if owner == AGENT:
            yield (
                f"block {block} ({model.blocks[block].name}) is owned by {AGENT!r}; in a group a trainer owns every block that "
                "training changes"
            )
        if len(placement.holders(block)) > 1:
            yield (
                f"several workers compute block {block} ({model.blocks[block].name}); in a group one does, of every block that "
                "training changes"
            )
    for first, *others in model.together:
        if other := next((block for block in others if owners.get(block) != owners.get(first)), None):
            yield (
                f"block {first} ({model.blocks[first].name}) and block {other} ({model.blocks[other].name}) use one weight; in "
                "a group one trainer owns both"
            )


def _exchange(placement: Placement, _model: ModelFacts) -> Iterator[str]:
    if placement.exchange is not None and (wrong := wrong_segments(placement.exchange, placement.blocks)):
        yield wrong


def _labels(placement: Placement, _model: ModelFacts) -> Iterator[str]:
    heads = {tile.worker for tile in placement.holders(placement.blocks - 1)}
    if placement.labels is not None and placement.labels != heads:
        yield (
            f"the loss is to be computed by {', '.join(sorted(placement.labels))}; it is computed where the last block is, by "
            f"{', '.join(sorted(heads))}"
        )


def _routes(placement: Placement, model: ModelFacts) -> Iterator[str]:
    coded = {Cargo.FEATURE, Cargo.ERROR_GRADIENT} | ({Cargo.WEIGHT_GRADIENT, Cargo.WEIGHTS} if model.merged else set())
    for route in placement.codecs:
        if route.sender == route.receiver or not {route.sender, route.receiver} <= set(placement.workers):
            yield f"a codec is named for the way from {route.sender!r} to {route.receiver!r}; it joins two workers"
        if route.cargo not in coded:
            yield (
                f"a codec is named for the cargo {route.cargo}; only features and error gradients are sent by a codec, and in "
                "a group weights and their gradients"
            )


def _types(placement: Placement, model: ModelFacts) -> Iterator[str]:
    for one in crossings(placement, model):
        if one.cargo is not Cargo.FEATURE:
            continue
        for name in (name for slot in one.slots if (name := model.value(one.index, slot).unsent_type)):
            what = f"what enters block {one.index} ({model.blocks[one.index].name})"
            yield (
                f"{what} would go from {one.sender!r} to {one.receiver!r} and holds numbers of type {name}, which cannot be "
                "sent; let one worker have that block and what comes before it"
            )


def _recalled(placement: Placement, model: ModelFacts) -> Iterator[str]:
    """Features of samples are kept at one cut, or recalled where one worker has all blocks; where they are recalled, every
    block before makes the same of a sample in every step."""
    if not model.recalls and not model.sends_changes:
        return
    key, what = ("recall", "features are recalled") if model.recalls else ("changes", "changes of features are sent")
    holders = [[tile.worker for tile in placement.holders(block)] for block in range(placement.blocks)]
    device, trainer, cut = holders[0], holders[-1], holders.count(holders[0])
    is_alone = device == trainer
    is_cut = (model.recalls or not is_alone) and holders == [device] * cut + [trainer] * (placement.blocks - cut)
    sources = [source.worker for source in placement.sources]
    if model.merged or not is_cut or sources != device or len(trainer) > 1 or placement.shared_blocks:
        yield (
            f"{what} (deployment.{key}), which takes one cut: the first blocks where the samples are, all others on one "
            f"trainer, and no group; set deployment.cut, or leave deployment.{key} out"
        )
    unchanging = 1 if is_alone else cut
    for block in range(unchanging if model.recalls else 0):
        if not (facts := model.blocks[block]).steady:
            does, mend = "draws random numbers, or keeps statistics", "leave deployment.recall out"
            if facts.trainable:
                does, mend = "learns", "freeze it by model.frozen"
            yield (
                f"block {block} ({facts.name}) {does}, so its feature of a sample changes and cannot be recalled "
                f"(deployment.recall); {mend}" + (f", or set deployment.cut to {block}" if block else "")
            )


def _enough_samples(placement: Placement, model: ModelFacts) -> Iterator[str]:
    for worker in placement.workers:
        for stage in stages(placement, worker, model):
            for block in stage.blocks:
                least = min(model.blocks[block].min_samples, placement.batch_size)
                if stage.rows.count < least:
                    yield (
                        f"{worker!r} has {_counted(stage.rows.count, 'sample')} of block {block} "
                        f"({model.blocks[block].name}), which needs {least} at least"
                    )


def _private(placement: Placement, model: ModelFacts, permissions: Permissions) -> Iterator[str]:
    """No raw sample and no label goes where it may not."""
    sources = placement.sources
    for one in crossings(placement, model):
        raw = one.cargo is Cargo.FEATURE and carries_raw(one, model)
        own = any(source.worker == one.receiver and source.rows.overlap(one.rows) == one.rows for source in sources)
        if raw and not own and one.receiver not in permissions.inputs_to:
            first = "block" if model.raw_features == 1 else f"{model.raw_features} blocks"
            yield (
                f"raw samples would go from {one.sender!r} to {one.receiver!r}{_why_raw(one, model)}; leave the first {first} "
                f"where the samples are, or permit it by privacy.inputs_to{_public(one, model)}"
            )
        labels_to = permissions.labels_to
        if one.cargo is Cargo.LABEL and labels_to is not None and one.receiver not in labels_to:
            yield (
                f"labels would go from {one.sender!r} to {one.receiver!r}; leave the last block with "
                f"{' or '.join(sorted({one.sender, *labels_to}))}, or permit it by the labels of the configured placement"
            )


def _telling(placement: Placement, model: ModelFacts, permissions: Permissions) -> Iterator[str]:
    """No gradient and no new weights of a block go where they would tell of samples or labels that may not go there."""
    labels_to = permissions.labels_to
    if labels_to is None:
        labels_to = frozenset(tile.worker for tile in placement.holders(placement.blocks - 1))
    for one in weight_crossings(placement, model):
        told = []
        if tells_inputs(one, placement, model) and one.receiver not in permissions.inputs_to:
            told.append("samples, because it computes on raw ones")
        if tells_labels(one, placement) and one.receiver not in labels_to:
            told.append("labels, because it is the last block")
        if model.merged and one.cargo is Cargo.WEIGHT_GRADIENT and not told:
            told.append("what this device has, because the trainer has those of every step")
        if told and one.receiver not in permissions.gradients_to:
            sources = " or ".join(sorted({source.worker for source in placement.sources}))
            yield (
                f"the {'gradient' if one.cargo is Cargo.WEIGHT_GRADIENT else 'new weights'} of block {one.index} "
                f"({model.blocks[one.index].name}) would go from {one.sender!r} to {one.receiver!r}, and could tell "
                f"{' and '.join(told)}; let {sources} alone hold and own the block, or permit it by privacy.gradients_to"
            )


def carries_raw(one: Crossing, model: ModelFacts) -> bool:
    """Tell whether a feature on this crossing holds raw samples, or what counts as such."""
    return any(model.is_raw(model.features[one.index][slot]) for slot in one.slots)


def why_raw(one: Crossing, model: ModelFacts) -> str:
    """Explain why a feature counts as raw samples, where that has to be said; empty otherwise."""
    raw, told = _raw(one, model), []
    feature = max((value.feature for value in raw if value.feature < model.raw_features), default=0)
    if feature:
        told.append(model.why_raw[feature - 1])
    names = _names(raw)
    if one.index and (names or not feature):
        inputs = f"the input {' and '.join(map(repr, names))} alone has" if names else "inputs alone have"
        told.append(f"block {one.index} ({model.blocks[one.index].name}) reads what {inputs} made")
    return ", and ".join(told)


def _why_raw(one: Crossing, model: ModelFacts) -> str:
    return f": {why}" if (why := why_raw(one, model)) else ""


def _public(one: Crossing, model: ModelFacts) -> str:
    """Return the setting that would permit what some named inputs alone have made; empty where these are all or none."""
    names = _names(_raw(one, model))
    if not names or set(names) == {name for value in model.values for name in value.inputs}:
        return ""
    return f"; where that input tells nothing of a sample, privacy.public_inputs = {json.dumps(names)} permits it"


def _names(values: Sequence[ValueFacts]) -> list[str]:
    """The names of inputs of which some values are made and nothing else."""
    return sorted({name for value in values if value.raw for name in value.inputs})


def _raw(one: Crossing, model: ModelFacts) -> list[ValueFacts]:
    places = (model.features[one.index][slot] for slot in one.slots)
    return [model.values[place] for place in places if model.is_raw(place)]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
