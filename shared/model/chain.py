"""A model as a chain of blocks, which are placed, trained and moved one by one.

A module declares its blocks (an nn.Sequential, or a method `blocks()`), or a trace of its forward finds them
(`tracing/`, `division/`). Either way the blocks are made of the module's own submodules,
parameters and buffers under the module's own names (`state_entries.py`), and the chain has been held against the module
(`division/verify.py`).
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.behaviour import Behaviour, behaviour_of
from shared.model.division.declared import declared_by_place
from shared.model.division.lengths import Lengths, lengths_of
from shared.model.division.seams import find_seams
from shared.model.division.segmentation import find_pieces
from shared.model.division.segments import Joined, build_modules
from shared.model.division.verify import Verification
from shared.model.examples import of_length, other_lengths, shorter
from shared.model.features import Features, FeatureSpecs
from shared.model.inputs import Inputs, features_of_inputs, names_of_inputs
from shared.model.reading_off import Trial, changing, made_up_trials, measured_trials, readable_shares, why_raw
from shared.model.snapshot import unchanged
from shared.model.spec import TensorSpec
from shared.model.state_entries import BlockState, StateEntry, assign_state
from shared.model.tied import check_memory, check_tied
from shared.model.tracing import trace
from shared.model.values.connecting import made_slots, shown_of, torn_blocks, uses_of, wiring_of
from shared.model.values.public import public_slots, with_public
from shared.model.values.wiring import Value, Values, connect


@dataclass(frozen=True, eq=False)
class Block:
    """The smallest piece of a model that is ever placed or moved."""

    index: int
    name: str
    """Unique in the chain: the qualified name of the block, or of the first layer in it that has weights."""
    module: nn.Module
    """Takes and returns features, as `call_module` says. Its train(), eval() and to() reach all that it runs; blocks may share
    modules without state (a dropout, say), and then the mode of these."""
    modifies_input: bool
    """True if the block writes to a tensor that it is given, as an in-place activation does, or hands it on to one that
    does."""
    draws_random: bool
    """True if the block draws from torch's default generator in train mode, as dropout does."""
    state: BlockState = field(repr=False)
    """Places of the block's parameters and buffers in the module."""

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters as they are now, by their names in the whole module; a tied one once, by its first name."""
        return {entry.name: value for entry, value in self._values() if isinstance(value, nn.Parameter)}

    def tied_parameters(self) -> dict[int, dict[str, nn.Parameter]]:
        """The parameters that the block uses and earlier blocks have: by the block that has them, and by name."""
        found: dict[int, dict[str, nn.Parameter]] = {}
        for tied in self.state.tied:
            if isinstance(value := tied.entry.value, nn.Parameter):
                found.setdefault(tied.keeper, {})[tied.entry.name] = value
        return found

    def named_buffers(self) -> dict[str, Tensor]:
        """The persistent buffers as they are now, by their names in the whole module."""
        return {entry.name: value for entry, value in self._values() if not entry.is_parameter and entry.is_persistent}

    def named_transients(self) -> dict[str, Tensor]:
        """The buffers that the state dict leaves out; training may change them all the same."""
        return {
            entry.name: value for entry, value in self._values() if not entry.is_parameter and not entry.is_persistent
        }

    @property
    def trainable(self) -> bool:
        """Tell whether any parameter takes a gradient."""
        return any(parameter.requires_grad for parameter in self.named_parameters().values())

    @property
    def frozen(self) -> bool:
        """Tell whether there are parameters and none takes a gradient."""
        return bool(self.named_parameters()) and not self.trainable

    def _values(self) -> list[tuple[StateEntry, Tensor]]:
        first_names: dict[int, tuple[StateEntry, Tensor]] = {}
        for entry in self.state.entries:
            first_names.setdefault(id(entry.value), (entry, entry.value))
        return list(first_names.values())


@dataclass(frozen=True, eq=False)
class Chain:
    """L blocks that, one after another, are the module."""

    module: nn.Module
    blocks: tuple[Block, ...]
    features: tuple[FeatureSpecs, ...]
    """L + 1 of them, for the batch of the example: features[b] enters block b; [0] is the input and [L] the output."""
    values: Values
    """The same tensors by their origins: a tensor that blocks pass on is one value at several boundaries."""
    readable: tuple[float, ...]
    """Share of a sample's numbers that can be read off behind each of the first blocks, as long as these count as raw
    samples: a notable share, or outputs of blocks without parameters, because anybody can compute those."""
    inputs_may_cross: bool
    """Permission for raw samples to leave the edge."""
    behaviours: tuple[Behaviour, ...]
    """Fingerprint of each block: numbers that the same chain on another machine has too."""
    input_names: tuple[str, ...] = ()
    """Names of the parameters that take the inputs, in the order of `features[0]`; none where places do."""
    lengths: Lengths | None = None
    """Lengths that batches may have; None where all are like the example."""
    types: Mapping[str, tuple[tuple[torch.dtype, ...], ...]] = field(default_factory=dict)
    """Types of all features where every block computes in another precision than `features` has, by its name."""

    @property
    def first_boundary(self) -> int:
        """The first block whose inputs may leave the edge: behind it, nothing passes that counts as raw samples."""
        if self.inputs_may_cross:
            return 1
        readers = (value.readers[-1] for value in self.values.all if value.readers and self.is_raw(value))
        return 1 + max(readers, default=0)

    def is_raw(self, value: Value) -> bool:
        """Tell whether a value counts as raw samples: inputs alone have made it, or they can be read off it. What follows from
        public inputs alone never does."""
        if self.values.place_of(value) in self.values.public:
            return False
        return value.feature <= len(self.readable) or value.shows or not self.has_parameters(value)

    @property
    def why_raw(self) -> tuple[str, ...]:
        """Return in words, for each of the first blocks, why its outputs count as raw samples; only as long as they do."""
        return tuple(why_raw(block.name, share) for block, share in zip(self.blocks, self.readable, strict=False))

    def why_raw_at(self, cut: int) -> str:
        """Explain why what passes at a cut in front of `first_boundary` counts as raw samples."""
        told = [self.why_raw[cut - 1]] if cut <= len(self.readable) else []
        for raw in self.passing_raw(cut)[:1]:
            inputs = " and ".join(map(repr, self.names_of(raw)))
            made = f"the input {inputs}" if inputs else "an input"
            if raw.feature:
                made = f"what block {self.blocks[raw.feature - 1].name!r} makes of {made if inputs else 'inputs'}"
            told.append(f"{made} passes there, for block {self.blocks[raw.readers[-1]].name!r}")
        return ", and ".join(told)

    def passing_raw(self, cut: int) -> tuple[Value, ...]:
        """Return what counts as raw samples at a cut for what it is made of; in front of a readable block that with names."""
        values = (self.value(cut, slot) for slot in range(len(self.features[cut])))
        is_told = cut <= len(self.readable)
        return tuple(
            value
            for value in values
            if self.is_raw(value) and not (is_told and (self.has_parameters(value) or not self.input_names))
        )

    def names_of(self, value: Value) -> tuple[str, ...]:
        """Return the names of the inputs that a value is made of; none where inputs have no names."""
        places = sorted(self.values.inputs_of[self.values.place_of(value)])
        return tuple(self.input_names[place] for place in places) if self.input_names else ()

    @property
    def outputs(self) -> FeatureSpecs:
        """The outputs. A loss with a name of ours takes one, a user's own several."""
        return self.features[-1]

    def outputs_beside(self, labels: TensorSpec) -> FeatureSpecs:
        """The outputs for a batch with labels of this kind, which may tell its length."""
        return self.outputs if self.lengths is None else self.lengths.outputs_beside(labels, self.outputs)

    @property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Groups of blocks that use a parameter together, so that they stay with one worker, in order."""
        groups: list[set[int]] = []
        for block in self.blocks:
            for tied in block.state.tied:
                joined = {block.index, tied.keeper}.union(
                    *(group for group in groups if tied.keeper in group or block.index in group)
                )
                groups = [group for group in groups if group.isdisjoint(joined)] + [joined]
        return tuple(sorted(tuple(sorted(group)) for group in groups))

    def parts_tied(self, first: int, stop: int) -> bool:
        """Tell whether blocks [first, stop) have a parameter together with a block that is none of them."""
        wanted = set(range(first, stop))
        return any(not wanted.isdisjoint(group) and not wanted.issuperset(group) for group in self.together)

    def value(self, feature: int, slot: int) -> Value:
        """Return the value in one slot of a feature."""
        return self.values.all[self.values.features[feature][slot]]

    def spec_of(self, value: Value) -> TensorSpec:
        """Return the shape and the type of a value."""
        return self.features[value.feature][value.slot]

    def learns(self, value: Value) -> bool:
        """Tell whether an error gradient at a value is of use: it is of floats, and a parameter that it is made of learns."""
        if not self.spec_of(value).differentiable:
            return False
        own = any(self.module.get_parameter(name).requires_grad for name in value.parameters)
        return own or any(self.learns(self.values.all[source]) for source in value.sources)

    def has_parameters(self, value: Value) -> bool:
        """Tell whether any parameter had a part in making a value. Without, inputs alone have made it."""
        return self.values.has_parameters(value)

    def read_slots(self, first: int, stop: int) -> tuple[int, ...]:
        """The slots of `features[first]` that blocks [first, stop) compute with."""
        return tuple(
            slot
            for slot in range(len(self.features[first]))
            if any(first <= reader < stop for reader in self.value(first, slot).readers)
        )

    def gradient_slots(self, block: int) -> tuple[int, ...]:
        """The slots of `features[block]` whose error gradients are of use."""
        return tuple(slot for slot in range(len(self.features[block])) if self.learns(self.value(block, slot)))

    def gradients_return(self, block: int) -> bool:
        """Tell whether an error gradient at the input of a block is of use, so that any is sent back."""
        return bool(self.gradient_slots(block))

    def is_answered(self, first: int, stop: int) -> bool:
        """Tell whether an error gradient is of use at anything that blocks [first, stop) have made and hand on."""
        return any(self.value(stop, slot).feature > first for slot in self.gradient_slots(stop))

    def coded_slots(self, feature: int) -> tuple[bool, ...]:
        """Tell of each slot of a feature whether a codec may change it: integers stand for something, and what no parameter has
        made beside other tensors, as masks and positions, are few numbers that all count."""
        specs = self.features[feature]
        return tuple(
            spec.differentiable and (len(specs) == 1 or self.has_parameters(self.value(feature, slot)))
            for slot, spec in enumerate(specs)
        )


def build_chain(
    module: nn.Module,
    example: Inputs,
    *,
    inputs_may_cross: bool = False,
    public_inputs: Collection[str] = (),
    length_varies: bool = False,
) -> Chain:
    """Divide a module into blocks and verify them on `example`, a batch of inputs on the module's device.

    Verified are, bit for bit: outputs and buffers in train mode and in eval mode, with other batch sizes and contents, and with
    another length where a trace allows it.
    Blocks between which the batch is not the first dimension become one. Buffers, gradients, modes and random state are
    afterwards as they were. Shapes other than the batch size are taken to stay as they are in the example.
    inputs_may_cross: whether the edge's user permits that features leave it off which samples can be read. public_inputs: names
    of inputs that may leave it in any case. length_varies: whether batches may be shorter than the example. Raises ModelError,
    and ConfigError for such a name that is no input.
    """
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise ModelError(f"{type(module).__name__} is or holds a TorchScript module; give the module it was made of")
    for name, parameter in module.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ModelError(f"parameter {name!r} has no shape yet; let the factory run the module once on an example")
    names, inputs = names_of_inputs(example), features_of_inputs(example)
    public = public_slots(public_inputs, names)
    with unchanged(module):
        mode = module.training
        verification = Verification(module, inputs, names)
        for length in other_lengths(inputs) if length_varies else ():
            verification.add_length(of_length(inputs, length))
        named_modules = declared_by_place(module, names) or _traced_blocks(module, inputs, names, verification)
        if len(named_modules) < 2:
            raise ModelError(f"{type(module).__name__} consists of a single block; a chain needs two or more")
    assign_state(module, named_modules)  # before any use of the blocks, because it names the ones that it refuses
    with unchanged(module):
        observed = verification.check(named_modules)
        if never := observed.not_batch_first | torn_blocks(named_modules, observed):
            named_modules = _joined(module, named_modules, never)
            observed = verification.check(named_modules)
        states = assign_state(module, named_modules)
        persistent = frozenset(id(entry.value) for state in states for entry in state.entries if entry.is_persistent)
        check_memory(type(module).__name__, states)
        check_tied(type(module).__name__, named_modules, states, observed.features)
        modules = [block for _, block in named_modules]
        behaviours = tuple(
            behaviour_of(block, inputs, persistent, draws_random=draws)
            for block, inputs, draws in zip(modules, observed.features, observed.draws_random, strict=False)
        )
        values = connect(
            [wiring_of(block, states[index], observed, index) for index, block in enumerate(modules)],
            len(observed.features[0]),
        )
        values = values.used(uses_of(modules, values, observed))
        values = with_public(values, public, modules, observed.features[0], persistent)
        trials = _of_private(made_up_trials(observed.features[0], persistent), values)
        readable = readable_shares(modules, trials, made_slots(values))
        values = values.showing(shown_of(modules, values, observed.features, len(readable), persistent))
        for block in modules:
            block.train(mode)
    blocks = tuple(
        Block(
            index,
            name,
            block,
            modifies_input=observed.modifies_input[index],
            draws_random=observed.draws_random[index],
            state=states[index],
        )
        for index, (name, block) in enumerate(named_modules)
    )
    lengths = lengths_of(type(module).__name__, observed.of_lengths) if length_varies else None
    return Chain(module, blocks, observed.features, values, readable, inputs_may_cross, behaviours, names, lengths)


def with_measured(chain: Chain, batch: Inputs) -> Chain:
    """Return the chain, with the readable shares also measured on a batch of inputs with the present weights."""
    modules = [block.module for block in chain.blocks]
    with unchanged(chain.module):
        trials = _of_private(measured_trials(features_of_inputs(batch)), chain.values)
        measured = readable_shares(modules, trials, made_slots(chain.values))
        for block in modules:
            block.train(chain.module.training)
    shares = itertools.zip_longest(chain.readable, measured, fillvalue=0.0)
    return replace(chain, readable=tuple(max(pair) for pair in shares))


def _of_private(trials: Iterable[Trial], values: Values) -> Iterator[Trial]:
    """The trials in which what is not public changes."""
    private = [place for place in values.features[0] if place not in values.public]
    return (changing(trial, private) for trial in trials)


def _joined(
    module: nn.Module, named_modules: Sequence[tuple[str, nn.Module]], never: frozenset[int]
) -> list[tuple[str, nn.Module]]:
    """The blocks, where those that nothing may ever come between are one block, named after its first."""
    joined: list[tuple[str, list[nn.Module]]] = []
    for index, (name, block) in enumerate(named_modules):
        if index in never:
            joined[-1][1].append(block)
        else:
            joined.append((name, [block]))
    if len(joined) < 2:
        raise ModelError(
            f"{type(module).__name__} cannot be divided into blocks: what passes between them does not have the batch as its "
            "first dimension; use batch_first=True in its layers, or keep the batch in front; or it is written to in passing"
        )
    return [(name, blocks[0] if len(blocks) == 1 else Joined(blocks)) for name, blocks in joined]


def _traced_blocks(
    module: nn.Module, example: Features, names: tuple[str, ...], verification: Verification
) -> list[tuple[str, nn.Module]]:
    """The blocks that a trace finds, with their names. Where they are to take other lengths, this will be verified."""
    try:
        traced = trace(module, example, names)
    except ModelError as failure:
        raise (ModelError(verification.why_random) if verification.why_random else failure) from failure.__cause__
    if traced.takes_shorter and (short := shorter(example)) is not None:
        verification.add_length(short)
    segments = find_pieces(traced)
    if len(segments) < 2:
        seams = dict.fromkeys(seam.reason for seam in find_seams(traced))
        reasons = "".join(f"; {reason}" for reason in (*traced.leaf_reasons[:3], *list(seams)[:3]))
        raise ModelError(
            f"{type(module).__name__} cannot be divided into blocks: nowhere between two layers with weights do tensors alone "
            f"pass, outside of residual blocks and of what cannot be traced{reasons}; a method blocks() may "
            "say what its blocks are"
        )
    return list(zip((segment.name for segment in segments), build_modules(traced, segments), strict=True))
