"""Which placements a session may have: read from what the agent sends, valid, private, and within what its operator gives."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import Batches, SessionMemory
from shared.codec import codec_by_name
from shared.errors import ConfigError, ProtocolError
from shared.execution.model_facts import facts_of
from shared.model.chain import Chain
from shared.model.spec import TensorSpec
from shared.placement import (
    AGENT,
    Cargo,
    Crossing,
    ModelFacts,
    Permissions,
    Placement,
    check,
    crossings,
    gradient_crossings,
    parse_placement,
    stages,
    steps_ahead,
    weight_crossings,
)
from shared.runtime.crossing_wire import CrossingWire
from shared.training import block_state
from shared.training.recipe import Recipe
from shared.wire.isthmus.v1 import trainer_pb2 as pb

MAX_DOCUMENT_CHARACTERS = 64 * 1024
MAX_WORKERS = 16
"""Workers of one session: what crosses between them is looked at pair by pair."""


def read_placement(wanted: pb.Placement, blocks: int, batch_size: int) -> Placement:
    """The placement that an agent sends, not judged yet. Raises ConfigError."""
    text = wanted.document_json
    if len(text) > MAX_DOCUMENT_CHARACTERS:
        raise ConfigError(
            f"the placement is {len(text)} characters of JSON; at most {MAX_DOCUMENT_CHARACTERS} are taken"
        )
    try:
        placement = parse_placement(json.loads(text), "the placement", blocks, batch_size)
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"the placement is no JSON: {cause}") from cause
    if (count := len(placement.workers)) > MAX_WORKERS:
        raise ConfigError(f"the placement has {count} workers; at most {MAX_WORKERS} are taken")
    return dataclasses.replace(placement, version=wanted.version)


@dataclass(frozen=True)
class PlacementJudge:
    """Judges placements of one session's model for the worker that this trainer is."""

    worker: str
    chain: Chain
    recipe: Recipe
    limits: Limits
    memory: SessionMemory
    graph_bytes: int
    """What autograd keeps of a batch while that waits for its error gradient, at most; 0 where it keeps nothing."""

    @cached_property
    def model(self) -> ModelFacts:
        """What placing has to know of the model."""
        return facts_of(self.chain)

    def read(self, wanted: pb.Placement) -> Placement:
        """A placement that the session may have. Raises ConfigError, ProtocolError or StatusError."""
        placement = read_placement(wanted, len(self.chain.blocks), self.chain.features[0][0].shape[0])
        self.check(placement)
        return placement

    def check(self, placement: Placement) -> None:
        """Refuse a placement that the session may not have. Raises as `read` does."""
        self._check_worker(placement)
        others = frozenset(placement.workers) - {self.worker}  # what they may have is theirs and the agent's to say
        check(placement, self.model, Permissions(inputs_to=others | {self.worker}))
        for one in crossings(placement):
            raw = one.cargo is Cargo.FEATURE and one.index < self.model.raw_features
            if raw and one.receiver == self.worker and not self.limits.accept_inputs:
                raise ConfigError(
                    f"placement: raw samples would go from {one.sender!r} to {self.worker!r}, which takes none "
                    "(server.accept_inputs); leave the first blocks where the samples are"
                )
        for one in self._mine(placement):
            self._check_size(placement, one)
        self.memory.permit(placement.staleness, placement.codecs.values(), self.batches(placement))

    def batches(self, placement: Placement, *, training: bool = True) -> Batches:
        """What may be in flight here under a placement, in training or in an evaluation; labels come on top."""
        wire = CrossingWire(placement, self.chain, self.recipe.optimizer, lambda _labels: None)
        each = sum(self._crossing_bytes(wire, one) for one in self._mine(placement, training=training))
        if training:
            each += self._waiting_bytes(placement)
        return Batches(steps_ahead(placement, self.model, training=training) + 1, each)

    def check_tensor(self, what: str, count: int) -> None:
        """Refuse a tensor of too many bytes. Raises ProtocolError."""
        if count > self.limits.tensor_bytes:
            raise ProtocolError(
                f"{what} has {count} bytes; at most {self.limits.tensor_bytes} are allowed (server.max_tensor_bytes)"
            )

    def _check_worker(self, placement: Placement) -> None:
        if self.worker not in placement.workers or self.worker == AGENT:
            raise ConfigError(
                f"placement: this trainer is to be worker {self.worker[:40]!r}; the workers are "
                f"{', '.join(map(repr, placement.workers))}, of which {AGENT!r} is the agent"
            )
        if any(source.worker == self.worker for source in placement.sources):
            raise ConfigError(f"placement: {self.worker!r} is to have raw samples of its own; a trainer has none")

    def _mine(self, placement: Placement, *, training: bool = True) -> Iterator[Crossing]:
        """All that this worker sends or receives in a step."""
        model = self.model
        back = (*gradient_crossings(placement, model), *weight_crossings(placement, model)) if training else ()
        return (one for one in (*crossings(placement), *back) if self.worker in (one.sender, one.receiver))

    def _waiting_bytes(self, placement: Placement) -> int:
        """What a batch that waits for its error gradient keeps besides what has crossed: its graph, and its weights."""
        waiting = {
            block
            for stage in stages(placement, self.worker)
            if stage.stop < placement.blocks and self.model.learns_below(stage.stop)
            for block in stage.blocks
        }
        if not self.graph_bytes or not waiting:
            return 0
        weights = [value for block in waiting for value in self.chain.blocks[block].named_parameters().values()]
        return self.graph_bytes + sum(value.nbytes for value in weights)

    def _check_size(self, placement: Placement, one: Crossing) -> None:
        if one.cargo in (Cargo.FEATURE, Cargo.ERROR_GRADIENT):
            for spec in self.chain.features[one.index]:
                tensor = TensorSpec((one.rows.count, *spec.shape[1:]), spec.dtype)
                self.check_tensor(f"{one.cargo} {one.index} of {placement.batch_size} samples", tensor.bytes)

    def _crossing_bytes(self, wire: CrossingWire, one: Crossing) -> int:
        """What is held of a crossing at its worst: as it came or goes, and as it was decoded."""
        if one.cargo is Cargo.LABEL:
            return 0  # counted when they are announced
        if one.cargo in (Cargo.WEIGHTS, Cargo.WEIGHT_GRADIENT):
            return 2 * block_state.max_serialized_bytes(self.chain.blocks[one.index], self.recipe.optimizer)
        total = 0
        for slot in wire.slots(one):
            spec = self.chain.features[one.index][slot]
            tensor = TensorSpec((one.rows.count, *spec.shape[1:]), spec.dtype)
            encoded = codec_by_name(wire.codec(one, spec.dtype)).encoded_bytes(tensor.shape, tensor.dtype)
            total += tensor.bytes + max(tensor.bytes, encoded)
        return total
