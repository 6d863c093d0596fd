"""Public inputs: named inputs that may go to any worker, and the values that follow from them alone.

A value counts as public where the wiring says so, and where it stays bit for bit the same when all other inputs change: what is
written in place has no place in the wiring.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import nn

from shared.errors import ConfigError
from shared.model.features import FeatureSpecs
from shared.model.reading_off import UNFIT, changing, made_up_trials
from shared.model.snapshot import same_bits
from shared.model.values.wiring import Values


def public_slots(public: Collection[str], names: tuple[str, ...]) -> frozenset[int]:
    """Return the slots of public inputs. names: of all inputs, in order. Raises ConfigError for a name that is none."""
    for name in public:
        if name not in names:
            inputs = f"inputs are {', '.join(names)}" if names else "inputs have no names"
            raise ConfigError(f"privacy.public_inputs names {name!r}, which is no input of the model; its {inputs}")
    if public and set(public) == set(names):
        raise ConfigError(
            "privacy.public_inputs names every input of the model, so whole samples would be public; name fewer, or permit it "
            "by privacy.inputs_to"
        )
    return frozenset(names.index(name) for name in public)


def with_public(
    values: Values, slots: frozenset[int], blocks: Sequence[nn.Module], inputs: FeatureSpecs, persistent: frozenset[int]
) -> Values:
    """Return the values, of which those that follow from these inputs alone are public.

    Runs the blocks on made-up samples; behind one that cannot run on these, nothing that is made is public. persistent: as for
    `behaviour_of`.
    """
    if not slots:
        return values
    found = {place for place, made_of in enumerate(values.inputs_of) if made_of and made_of <= slots}
    trial = changing(made_up_trials(inputs, persistent)[0], frozenset(range(len(inputs))) - slots)
    one, other = trial.samples, trial.changed
    with torch.no_grad():
        for index, block in enumerate(blocks[:-1]):
            try:
                one, other = trial.run(index, block, one), trial.run(index, block, other)
            except UNFIT:
                found = {place for place in found if values.all[place].feature <= index}
                break
            pairs = zip(values.features[index + 1], one, other, strict=True)
            found.difference_update(place for place, first, second in pairs if not same_bits(first, second))
    for place, value in enumerate(values.all):
        if any(values.inputs_of[source] and source not in found for source in value.sources):
            found.discard(place)
    return replace(values, public=frozenset(found))
