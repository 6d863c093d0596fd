"""Values of verified blocks: what each block makes and passes on, how often it uses what it reads, and whether
samples can be read off what it makes.
"""

from collections.abc import Sequence

from torch import nn

from shared.model.division.segments import Joined, SegmentModule
from shared.model.division.verify import Observed
from shared.model.features import FeatureSpecs
from shared.model.reading_off import showing_blocks
from shared.model.state_entries import BlockState
from shared.model.tied import uses_of_inputs
from shared.model.values.wiring import Values, Wiring


def made_slots(values: Values) -> list[tuple[int, ...]]:
    """By block, the slots of its outputs that it has made."""
    return [
        tuple(slot for slot, value in enumerate(feature) if values.all[value].feature == index + 1)
        for index, feature in enumerate(values.features[1:])
    ]


def wiring_of(block: nn.Module, state: BlockState, observed: Observed, index: int) -> Wiring:
    if isinstance(block, SegmentModule | Joined) and block.wiring is not None:
        return block.wiring
    names = [entry.name for entry in (*state.entries, *(tied.entry for tied in state.tied)) if entry.is_parameter]
    return Wiring.opaque(frozenset(names), len(observed.features[index]), observed.passed[index])


def uses_of(modules: Sequence[nn.Module], values: Values, observed: Observed) -> dict[tuple[int, int], int]:
    """By value and block, how often the block uses the value, for values of floats that several blocks use."""
    found: dict[tuple[int, int], int] = {}
    for block, feature in enumerate(values.features[:-1]):
        several = {
            slot: value
            for slot, value in enumerate(feature)
            if len(values.all[value].readers) > 1
            and block in values.all[value].readers
            and observed.features[block][slot].differentiable
        }
        if several:
            modules[block].train()
            uses = uses_of_inputs(modules[block], observed.features[block], several)
            found |= {(value, block): max(uses[slot], 1) for slot, value in several.items()}
    return found


def shown_of(
    modules: Sequence[nn.Module],
    values: Values,
    features: Sequence[FeatureSpecs],
    readable: int,
    persistent: frozenset[int],
) -> set[int]:
    """The values that blocks behind the first `readable` make of raw ones so that these can be read off, as a later look-up."""
    shown, made = set[int](), made_slots(values)
    for index in range(max(readable, 1), len(modules) - 1):
        raw = {
            slot
            for slot, place in enumerate(values.features[index])
            if index in (value := values.all[place]).readers
            and not values.has_parameters(value)
            and place not in values.public
        }
        if raw:
            count = showing_blocks(modules[index:-1], made[index:], features[index], raw, persistent)
            for block in range(index, index + count):
                shown.update(values.features[block + 1][slot] for slot in made[block])
    return shown


def torn_blocks(named_modules: Sequence[tuple[str, nn.Module]], observed: Observed) -> frozenset[int]:
    """The blocks to join with those before them, because a tensor that passes one by is written to there under another name."""
    found = set[int]()
    began: list[int] = [0] * len(observed.features[0])
    """By slot, the block in front of which its tensor was first."""
    for index, (_, block) in enumerate(named_modules):
        if not isinstance(block, SegmentModule):
            return frozenset()  # what a declared block hands on is all that there is
        before, began = began, []
        for one, passed in zip(block.wiring.outputs, observed.passed[index], strict=True):
            if isinstance(one, int) and passed is None:
                found.update(range(max(before[one], 1), index + 1))
            began.append(before[one] if isinstance(one, int) else index + 1)
    return frozenset(found)
