"""Share of a sample that can be read off features: the part of its numbers that are each told by one number of a feature.

A number of a feature tells a number of the sample where it follows from that one alone, or where small changes of all others
together change it by less than a quarter as much. So do all maps of each number by itself (scaling, normalisation, activation,
dropout, rounding, a table), rearrangements and selections of numbers (padding, cropping, the largest of several), and the raw
numbers that a feature holds beside others.

This is tried, and not read from the kinds of layers: half of the sample's numbers are changed, then the other half, for several
halves. A number of a feature that always follows one half and not the other tells the number that was in all these halves.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from shared.model.behaviour import made_up_features, made_up_values
from shared.model.features import Features, FeatureSpecs, call_module, flat_numbers
from shared.model.random_state import random_state

NOTABLE_SHARE = 0.2
"""Share of a sample's numbers from which the readable ones count as the raw sample. It is above the share of a
sequence's ends: a recurrent layer has seen nothing else there yet."""
_OTHERS_CHANGED_LITTLE = 0.25
"""The most that small changes of all other numbers may change one that tells, in relation to the number that it tells."""
_OTHERS_EXCHANGED = 1e-3
"""The same where numbers are exchanged for others: these change by amounts of their own."""
_NOTICEABLE = 1e-6
"""A share of the largest number of a feature; a smaller change is rounding."""
_TRAINED_SAMPLES = 4
"""Samples of a batch in train mode, so that normalisation over samples is as in training."""
_COLOURS = 4
"""Largest number of channels that count as the colours of a picture: a pixel is then one number, because the colours of
a pixel mixed still show the picture."""
_CODE_BITS = 4
"""Halves beyond those that tell all numbers of a sample apart, so that two numbers seldom look like one."""
UNFIT = (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError)
"""Errors of a block that runs on right numbers only."""
_JITTER, _STEP = 0.3, 0.01
"""Noise that parts equal numbers, and the changes, in standard deviations of the samples."""


Run = Callable[[int, nn.Module, Features], Features]
"""Runs a block, given its place, from which its random numbers follow: no two blocks drop the same ones."""


@dataclass(frozen=True)
class Trial:
    """One way in which samples are changed and blocks are run."""

    samples: Features
    """Inputs of one sample or more. The first one is examined."""
    changed: Features
    """The same with other numbers, of which only some are put in place at a time."""
    run: Run
    others: float
    """The most that all other numbers may change a number that tells one, in relation to that one."""


def readable_shares(
    blocks: Sequence[nn.Module], trials: Iterable[Trial], made: Sequence[Collection[int]] | None = None
) -> tuple[float, ...]:
    """The share of a sample's numbers that can be read off what each of the first blocks makes, as long as that is notable.

    made: by block, the slots of its outputs that it has made, where some pass others on.
    Behind blocks without parameters the features count with any share: anybody can compute them.
    Blocks are run on copies of buffers; the caller keeps modes. The last block is left out: nothing crosses behind it.
    """
    inner = blocks[:-1]
    found = [0.0 for _ in itertools.takewhile(_has_no_parameters, inner)]
    with torch.no_grad():
        for trial in trials:
            found = [max(pair) for pair in itertools.zip_longest(found, _shares(inner, made, trial), fillvalue=0.0)]
    return tuple(found)


def why_raw(name: str, share: float) -> str:
    """Explain why the features behind a block are raw samples. name: of the block. share: see `readable_shares`."""
    if share < NOTABLE_SHARE:
        return f"no block up to {name!r} has weights, so everybody can compute what it makes of a sample"
    return f"behind block {name!r} {share:.0%} of a sample can be read off, each number of it from one number of the feature"


def _has_no_parameters(block: nn.Module) -> bool:
    return next(block.parameters(), None) is None


def made_up_trials(inputs: FeatureSpecs, persistent: frozenset[int]) -> list[Trial]:
    """Trials with made-up samples and weights, which every machine has alike. persistent: as for `behaviour_of`."""
    values: dict[int, dict[str, Tensor]] = {}

    def run(place: int, block: nn.Module, features: Features) -> Features:
        block.train(False)
        if id(block) not in values:
            values[id(block)] = made_up_values(block, persistent)
        return _run(place, block, features, values[id(block)])

    samples = made_up_features(inputs, 1)
    others = tuple(
        sample if spec.differentiable else (1 - sample.long()).to(spec.dtype)
        for sample, spec in zip(samples, inputs, strict=True)
    )
    return _trials(samples, others, run)


def measured_trials(batch: Features) -> list[Trial]:
    """Trials with samples and the weights that the blocks have now, in eval mode and in train mode."""

    def run_in(training: bool) -> Run:
        def run(place: int, block: nn.Module, features: Features) -> Features:
            block.train(training)
            return _run(place, block, features, {})

        return run

    samples = tuple(tensor[:_TRAINED_SAMPLES] for tensor in batch)
    others = tuple(map(_differing, samples, batch))
    # Measured numbers are changed a little only: exchanging them shows the same as made-up weights.
    return [
        _trials(_first(samples), _first(others), run_in(training=False))[-1],
        _trials(samples, others, run_in(training=True))[-1],
    ]


def showing_blocks(
    blocks: Sequence[nn.Module],
    made: Sequence[Collection[int]],
    inputs: FeatureSpecs,
    raw: Collection[int],
    persistent: frozenset[int],
) -> int:
    """Count the blocks, from the first on, behind which a notable share of some inputs of the first one can be read off.

    raw: the slots of these. made, persistent: as for `readable_shares` and `behaviour_of`.
    """
    with torch.no_grad():
        return max(len(_shares(blocks, made, changing(trial, raw))) for trial in made_up_trials(inputs, persistent))


def changing(trial: Trial, slots: Collection[int]) -> Trial:
    """Return the trial in which the inputs in these slots alone change."""
    pairs = enumerate(zip(trial.samples, trial.changed, strict=True))
    return replace(trial, changed=tuple(other if slot in slots else one for slot, (one, other) in pairs))


def _differing(samples: Tensor, batch: Tensor) -> Tensor:
    """By number, that of another sample at the same place, where there is one that differs."""
    others = samples.clone()
    for place in range(1, len(batch)):
        others = torch.where(others == samples, batch[place : place + 1], others)
    return others


def _first(samples: Features) -> Features:
    return tuple(tensor[:1] for tensor in samples)


def _run(place: int, block: nn.Module, features: Features, values: dict[str, Tensor]) -> Features:
    """The outputs with these parameters and buffers in place of the block's own, and with copies of all other buffers."""
    buffers = {name: values.get(name, buffer).clone() for name, buffer in block.named_buffers()}
    with random_state("reading off", place):
        return call_module(block, tuple(feature.clone() for feature in features), {**values, **buffers})


def _trials(samples: Features, others: Features, run: Run) -> list[Trial]:
    """Exchange numbers for others, which rounding cannot hide. Measured ones are changed a little, which shows the
    selected ones.

    others: valid numbers in the place of integers; measured ones are drawn.
    """
    draw = torch.Generator().manual_seed(1)
    measured = [sample.is_floating_point() for sample in samples]
    drawn = tuple(
        sample.min() + (sample.max() - sample.min()) * torch.rand(sample.shape, generator=draw).to(sample)
        if floats
        else other
        for sample, other, floats in zip(samples, others, measured, strict=True)
    )
    exchanged = Trial(samples, drawn, run, _OTHERS_EXCHANGED)
    if not any(measured):
        return [exchanged]
    near = tuple(
        _moved(sample, _JITTER, draw) if floats else sample for sample, floats in zip(samples, measured, strict=True)
    )
    moved = tuple(
        (each + _step(sample, draw)) if floats else sample
        for sample, each, floats in zip(samples, near, measured, strict=True)
    )
    return [exchanged, Trial(near, moved, run, _OTHERS_CHANGED_LITTLE)]


def _moved(sample: Tensor, deviations: float, draw: torch.Generator) -> Tensor:
    """Numbers with noise of at most so many standard deviations."""
    return sample + _deviation(sample) * deviations * (2 * torch.rand(sample.shape, generator=draw) - 1).to(sample)


def _step(sample: Tensor, draw: torch.Generator) -> Tensor:
    """Changes of one size, up or down."""
    return _deviation(sample) * _STEP * (torch.rand(sample.shape, generator=draw) - 0.5).sign().to(sample)


def _deviation(sample: Tensor) -> float:
    return float(sample.double().std(correction=0)) or 1.0


def _shares(blocks: Sequence[nn.Module], made: Sequence[Collection[int]] | None, trial: Trial) -> list[float]:
    """The shares behind the first blocks in one trial, as long as they are notable. Mostly one block is enough to try."""
    count = 1
    while len(found := _shares_of_all(blocks[:count], made, trial)) == count < len(blocks):
        count *= 2
    return found


def _shares_of_all(blocks: Sequence[nn.Module], made: Sequence[Collection[int]] | None, trial: Trial) -> list[float]:
    """The same for few blocks."""
    differing = torch.cat(
        [(one[0] != other[0]).reshape(-1) for one, other in zip(trial.samples, trial.changed, strict=True)]
    )
    count = int(differing.sum())
    if not count:
        return []
    bits = count.bit_length() + _CODE_BITS
    codes = torch.cat([_codes(one.shape[1:], bits) for one in trial.samples])
    read = [_Readings() for _ in blocks]
    opened, plain = len(blocks), [trial.samples]
    for bit in range(bits):
        half = (codes >> bit & 1).bool()
        values = [_mixed(trial, half), _mixed(trial, ~half)]
        for index in range(opened):
            try:
                if len(plain) == index + 1:
                    plain.append(trial.run(index, blocks[index], plain[index]))
                values = [trial.run(index, blocks[index], value) for value in values]
            except UNFIT:
                opened = index
                break
            slots = (made[index] if made else ()) or range(
                len(values[0])
            )  # one that makes nothing shows what it passes on
            told = (_of_first(features, slots) for features in (plain[index + 1], *values))
            if read[index].add(bit, trial.others, *told) < NOTABLE_SHARE * count:
                opened = index
                break
    shares = [each.share(codes[differing]) for each in read[:opened]]
    return list(itertools.takewhile(lambda share: share >= NOTABLE_SHARE, shares))


def _codes(shape: torch.Size, bits: int) -> Tensor:
    """Assign every number of a sample to one half of each pair of halves, flat."""
    picture = len(shape) > 2 and shape[0] <= _COLOURS
    places = shape[1:] if picture else shape
    drawn = torch.randint(0, 2**bits, places, generator=torch.Generator().manual_seed(bits))
    return drawn.expand(shape).reshape(-1)


def _mixed(trial: Trial, chosen: Tensor) -> Features:
    """The samples with the changed numbers at the chosen places."""
    sizes = [one[0].numel() for one in trial.samples]
    return tuple(
        torch.where(places.reshape(one.shape[1:]).to(one.device), other, one)
        for one, other, places in zip(trial.samples, trial.changed, torch.split(chosen, sizes), strict=True)
    )


def _of_first(features: Features, slots: Collection[int]) -> Tensor:
    """All numbers of some slots of a feature of the first sample."""
    return torch.cat([flat_numbers(features[slot][:1]).cpu().double() for slot in slots])


class _Readings:
    """The halves that each number of a feature has followed until now."""

    def __init__(self) -> None:
        self._codes = self._telling = self._change = torch.empty(0)

    def add(self, bit: int, others: float, plain: Tensor, half: Tensor, other_half: Tensor) -> int:
        """Count the changes of two halves, and return how many numbers may still reveal one of the sample's."""
        if not plain.numel():
            return 0
        one, other = (half - plain).abs(), (other_half - plain).abs()
        larger, smaller = torch.maximum(one, other), torch.minimum(one, other)
        if not bit:
            self._codes = torch.zeros(plain.shape, dtype=torch.int64)
            self._telling = larger > _NOTICEABLE * plain.abs().max()
            self._change = larger
        # A number that depends on one number alone changes by the same amount every time.
        self._telling &= torch.maximum(smaller, (larger - self._change).abs()) <= others * self._change
        self._codes |= (one > other).long() << bit
        return int(self._telling.sum())

    def share(self, codes: Tensor) -> float:
        """The share of the sample's numbers, by their codes, that some number tells."""
        return float(torch.isin(codes, self._codes[self._telling]).double().mean())
