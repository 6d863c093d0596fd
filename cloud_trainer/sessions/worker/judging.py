"""The judge of placements: it reads an agent's, and checks that it is valid, private, and within the operator's limits."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.memory import Batches, SessionMemory, Uses
from shared.bounds import MOST_WORKERS
from shared.errors import ConfigError, ProtocolError
from shared.execution.model_facts import facts_of
from shared.execution.recalled import kept_bytes, kept_in_memory
from shared.model.chain import Chain
from shared.model.spec import TensorSpec
from shared.placement import (
    AGENT,
    Cargo,
    Crossing,
    Deployment,
    ModelFacts,
    Permissions,
    Placement,
    PlacementPlan,
    Route,
    StepPlan,
    carries_raw,
    check,
    check_size,
    held_blocks,
    parse_placement,
    stages,
    tells_inputs,
    why_raw,
)
from shared.runtime.block_form import SHARED
from shared.runtime.forms import Forms
from shared.training.kept_features import KeptFeatures
from shared.training.losses import check_labels
from shared.training.recipe import Recipe
from shared.wire.isthmus.v1 import trainer_pb2 as pb

MAX_DOCUMENT_CHARACTERS = 64 * 1024


class ActivePlacement(NamedTuple):
    """A judged placement, in the terms of the code that runs it, counts and shows it."""

    plan: PlacementPlan
    deployment: Deployment
    """Summary of the placement. Its codecs are those of the first crossing at this worker."""
    uses: Uses
    """Batches that may be in flight here."""

    @property
    def placement(self) -> Placement:
        """Return the placement itself."""
        return self.plan.placement


def read_placement(wanted: pb.Placement, blocks: int, batch_size: int) -> Placement:
    """Read the placement that an agent sends. It is not judged yet. Raises ConfigError."""
    text = wanted.document_json
    if len(text) > MAX_DOCUMENT_CHARACTERS:
        raise ConfigError(
            f"the placement is {len(text)} characters of JSON; at most {MAX_DOCUMENT_CHARACTERS} are taken"
        )
    try:
        placement = parse_placement(json.loads(text), "the placement", blocks, batch_size)
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"the placement is no JSON: {cause}") from cause
    if (count := len(placement.workers)) > MOST_WORKERS:
        raise ConfigError(f"the placement has {count} workers; at most {MOST_WORKERS} are taken")
    check_size(placement)
    return dataclasses.replace(placement, version=wanted.version)


@dataclass(frozen=True)
class PlacementJudge:
    """The judge of placements of one session's model, for this trainer's worker."""

    worker: str
    chain: Chain
    recipe: Recipe
    limits: Limits
    memory: SessionMemory
    graph_bytes: int
    """Most bytes that autograd keeps of a batch that waits for its error gradient; 0 if it keeps nothing."""
    merged: bool = False
    """True for the session of a group's member."""

    @cached_property
    def model(self) -> ModelFacts:
        """Return the facts of the model that a placement needs."""
        return facts_of(self.chain, self.recipe, merged=self.merged)

    def read(self, wanted: pb.Placement) -> ActivePlacement:
        """Read and judge a placement. Computes. Raises ConfigError, ProtocolError or StatusError."""
        return self.judged(read_placement(wanted, len(self.chain.blocks), self.chain.features[0][0].shape[0]))

    def judged(self, placement: Placement) -> ActivePlacement:
        """Judge a placement, and compute its consequences. Computes. Raises as `read` does."""
        self._check_worker(placement)
        others = frozenset(placement.workers) - {self.worker}  # others judge for themselves
        everybody = others | {self.worker}
        check(placement, self.model, Permissions(inputs_to=everybody, gradients_to=everybody))
        plan = PlacementPlan.of(placement, self.model)
        mine = [one for one in plan.training.crossings if self.worker in (one.sender, one.receiver)]
        for one in mine:
            raw = one.cargo is Cargo.FEATURE and carries_raw(one, self.model)
            if raw and one.receiver == self.worker and not self.limits.accept_inputs:
                why = f"{why}; " if (why := why_raw(one, self.model)) else ""
                raise ConfigError(
                    f"placement: raw samples would go from {one.sender!r} to {self.worker!r}, which takes none "
                    f"(server.accept_inputs); {why}leave the first blocks where the samples are"
                )
            self._check_gradient(placement, one)
            self._check_size(placement, one)
        keeps = self.recipe.recalls or self.recipe.changes is not None
        if keeps and self.chain.lengths is not None:
            raise ConfigError(
                "features of samples are kept (deployment.recall, deployment.changes), and samples have several lengths "
                "(data.longest); leave one of them out"
            )
        if plan.training.recalls_at(self.worker):
            self.limits.check_recalled("recall", self.recipe.recalled_samples, self._kept_bytes(placement))
        elif (changes := self.recipe.changes) is not None:
            self.limits.check_recalled("changes", changes.samples, self._kept_bytes(placement))
        uses = Uses(self._batches(plan.training), self._batches(plan.evaluation))
        self.limits.check_staleness(placement.staleness, placement.codecs.values())
        self.memory.check(uses)
        return ActivePlacement(plan, _deployment_at(self.worker, plan), uses)

    def _kept_bytes(self, placement: Placement) -> int:
        """Count the bytes that are kept of a sample, where any are."""
        return kept_bytes(self.chain, self.recipe, placement, self.model)

    def _batches(self, plan: StepPlan) -> Batches:
        """Count the batches that may be in flight here. Labels are added later."""
        forms = Forms(
            plan.placement,
            self.chain,
            lambda _labels: None,
            self.recipe,
            merged=self.merged,
            recalls=plan.recalls,
            kept=KeptFeatures(0) if plan.sends_changes else None,
        )
        mine = [one for one in plan.crossings if self.worker in (one.sender, one.receiver)]
        each = sum(forms.of(one).worst_bytes(kept=one.receiver in plan.stateless) for one in mine)
        if plan.training:
            each += self._waiting_bytes(plan.placement) + self._clipped_bytes(plan)
        # To a worker that has lost all comes at once what its peers have kept for it.
        in_flight = plan.most_under_way + plan.runs_ahead if self.worker in plan.stateless else plan.ahead + 1
        ahead = [one for one in mine if one in plan.sent_ahead]
        before = plan.samples_ahead * sum(forms.of(one).worst_bytes(kept=False) for one in ahead)
        repeated = (one for one in mine if one.cargo is Cargo.WEIGHTS and one.receiver in plan.stateless)
        before += plan.runs_ahead * sum(forms.of(one).worst_bytes(kept=False) for one in repeated)
        before += kept_in_memory(self.chain, self.recipe, plan, self.worker)
        labels = plan.samples_ahead if any(one.cargo is Cargo.LABEL for one in ahead) else 0
        return Batches(in_flight, each, labels, before)

    def check_replica(self, block: int) -> None:
        """Refuse to keep replicas of a block whose weights could tell raw samples in the course of time. Raises ConfigError."""
        if self.model.computes_on_raw(block) and not self.limits.accept_inputs:
            raise ConfigError(
                f"block {block} computes on raw samples, so its replicas could tell raw samples to {self.worker!r}, which "
                "takes none (server.accept_inputs); keep them on the device, or at a trainer that takes samples"
            )

    def check_tensor(self, what: str, count: int) -> None:
        """Refuse a tensor of too many bytes. Raises ProtocolError."""
        if count > self.limits.tensor_bytes:
            raise ProtocolError(
                f"{what} has {count} bytes; at most {self.limits.tensor_bytes} are allowed (server.max_tensor_bytes)"
            )

    def check_labels(self, labels: TensorSpec) -> None:
        """Refuse labels that the loss does not accept, or for which there is no memory. Raises an IsthmusError."""
        self.check_tensor("a tensor of labels", labels.bytes)
        check_labels(self.recipe.loss, self.chain.features[0], self.chain.outputs_beside(labels), labels)
        self.memory.take_labels(self.recipe.label_tensors * labels.bytes)

    def _check_worker(self, placement: Placement) -> None:
        if self.worker not in placement.workers or self.worker == AGENT:
            raise ConfigError(
                f"placement: this trainer is to be worker {self.worker[:40]!r}; the workers are "
                f"{', '.join(map(repr, placement.workers))}, of which {AGENT!r} is the agent"
            )
        if any(source.worker == self.worker for source in placement.sources):
            raise ConfigError(f"placement: {self.worker!r} is to have raw samples of its own; a trainer has none")

    def _check_gradient(self, placement: Placement, one: Crossing) -> None:
        of_a_block = one.cargo in SHARED and one.receiver == self.worker
        if of_a_block and tells_inputs(one, placement, self.model) and not self.limits.accept_inputs:
            raise ConfigError(
                f"placement: the gradient of block {one.index}, which could tell raw samples, would go from "
                f"{one.sender!r} to {self.worker!r}, which takes none (server.accept_inputs); leave the block where the "
                "samples are"
            )

    def _waiting_bytes(self, placement: Placement) -> int:
        """Count the bytes that a batch keeps while it waits for its error gradient, besides the crossed tensors: graph
        and the weights that learn."""
        waiting = {
            block
            for stage in stages(placement, self.worker)
            if stage.stop < placement.blocks and self.model.answered_slots(stage.first, stage.stop)
            for block in stage.blocks
        }
        if not self.graph_bytes or not waiting:
            return 0
        weights = [value for block in waiting for value in self.chain.blocks[block].named_parameters().values()]
        return self.graph_bytes + sum(value.nbytes for value in weights if value.requires_grad)

    def _clipped_bytes(self, plan: StepPlan) -> int:
        """Count the bytes of the gradients of a batch that wait for their coefficient."""
        if not any(one.cargo is Cargo.COEFFICIENT and one.receiver == self.worker for one in plan.crossings):
            return 0
        owned = (block for block in self.chain.blocks if plan.placement.owner(block.index) == self.worker)
        return sum(
            value.nbytes for block in owned for value in block.named_parameters().values() if value.requires_grad
        )

    def _check_size(self, placement: Placement, one: Crossing) -> None:
        if one.cargo in (Cargo.FEATURE, Cargo.ERROR_GRADIENT):
            for slot in one.slots:
                spec = self.chain.features[one.index][slot]
                tensor = TensorSpec((one.rows.count, *spec.shape[1:]), spec.dtype)
                self.check_tensor(f"{one.cargo} {one.index} of {placement.batch_size} samples", tensor.bytes)


def _deployment_at(worker: str, plan: PlacementPlan) -> Deployment:
    """Summarise a placement in few numbers, as one worker sees it."""
    placement, crossings = plan.placement, plan.training.crossings
    return Deployment(
        version=placement.version,
        edge_blocks=len(held_blocks(placement, AGENT)),
        staleness=placement.staleness,
        codec=_first_codec(
            placement, (one for one in crossings if one.cargo is Cargo.FEATURE and one.receiver == worker)
        ),
        downlink_codec=_first_codec(
            placement, (one for one in crossings if one.cargo is Cargo.ERROR_GRADIENT and one.sender == worker)
        ),
    )


def _first_codec(placement: Placement, several: Iterable[Crossing]) -> str:
    """Return the codec of the first of them; raw if there is none."""
    routes = (Route(one.sender, one.receiver, one.cargo) for one in several)
    return next((placement.codecs.get(route, "raw") for route in routes), "raw")
