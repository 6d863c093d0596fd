"""The blocks whose weights a worker holds, with their optimizer: brought, updated, given away, whole or not at all.

A block learns the same wherever it is: its gradient is clipped by itself, or by one coefficient for all, every parameter has an
optimizer state of its own, and the learning rate follows from the step. So one optimizer serves all blocks of a worker. Called
from one thread.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.chain import Block, Chain
from shared.registry import Precision
from shared.registry.corrections import momentum_of
from shared.training import block_state
from shared.training.averages import Averages, add_to_averages
from shared.training.block_failures import failures_of, raise_block_failure
from shared.training.clipping import SKIP, BlockNorms, Clipping
from shared.training.kept_features import KeptFeatures
from shared.training.loss_scale import LossScale
from shared.training.optimizers import Grouping, build_optimizer
from shared.training.prediction import predict, set_late_momentum
from shared.training.range_updates import RangeUpdates
from shared.training.recipe import Recipe
from shared.training.schedule import set_rates
from shared.training.slices import Slice, whole

BlockGradients = dict[str, Tensor]
"""The gradient of a block: by the parameter's name in the whole module; none where no gradient reaches it."""


class HeldBlocks:
    """Blocks of a chain on one device, with their optimizer."""

    def __init__(
        self,
        chain: Chain,
        recipe: Recipe,
        device: torch.device,
        indices: Iterable[int] = (),
        precision: Precision | None = None,
    ) -> None:
        """precision: of this worker; left out, that of all."""
        self.chain = chain
        self.precision = recipe.base_precision if precision is None else precision
        """Precision of forwards and of the loss."""
        self.recipe = recipe
        self.device = device
        self.rate_drops = 0
        """Times that the rate has been lowered, which the device that evaluates has the next steps tell, and a group its
        members; see `set_rates`."""
        self.weights_version = 0
        """Rises whenever weights change."""
        clip_norm, is_scaled = recipe.model_clip_norm, recipe.is_scaled
        self.clipping = Clipping(chain, clip_norm, is_scaled=is_scaled) if clip_norm is not None or is_scaled else None
        """Clipping of all blocks by one norm, or the skipping of all by one overflow; None where each block is for itself."""
        self.loss_scale = LossScale() if is_scaled else None
        """Scale of the loss, at the worker that tells it to the others; None in a precision that needs none."""
        self.kept = None if recipe.changes is None else KeptFeatures(recipe.changes.samples)
        """Features of samples, where only what has changed of them crosses."""
        self._momentum = None if recipe.staleness_correction == "none" else momentum_of(recipe.optimizer)
        """The momentum of blocks whose updates come late, by which their weights are predicted; None where none are."""
        self._grouping = Grouping(recipe.optimizer)
        self._range_updates = RangeUpdates(recipe, self._grouping)
        self._optimizer: torch.optim.Optimizer | None = None
        """Optimizer of all parameters that the blocks learn; None where there are none."""
        self._learning: dict[int, dict[str, nn.Parameter]] = {}
        """Parameters that the optimizer updates, of each block that is here, by their names in the whole module."""
        self._averages: Averages | None = None if recipe.ema is None else {}
        """Averages of the parameters that are updated here; None where none are kept."""
        self._tied = [block.tied_parameters() for block in chain.blocks]
        self._accumulated: dict[int, BlockGradients] = {}
        """The sum of the gradients of earlier batches of the update to come, of each block."""
        self._frozen: dict[int, int] = {}
        """Digests of the parameters that do not learn, of each block that is here and has any, as they came."""
        self._held: tuple[int, ...] = ()
        self._taken_in: tuple[int, ...] = ()
        self.hold(indices, {})

    @property
    def indices(self) -> tuple[int, ...]:
        """The blocks that are held, in order."""
        return self._held

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The same, themselves."""
        return tuple(self.chain.blocks[index] for index in self._held)

    def hold(self, indices: Iterable[int], arriving: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Hold these blocks from now on; those that leave take their optimizer state with them.

        arriving: the states of blocks that come from elsewhere. Raises ProtocolError, and changes nothing, if one of
        them does not fit.
        """
        self._check_all(arriving)
        wanted = tuple(sorted(indices))
        here = {*self._held, *self._taken_in}
        for index in here.difference(wanted):
            self._release(index)
        self._held, self._taken_in = wanted, ()
        for index in wanted:
            if index not in here:
                self._place(index)
            if index in arriving:
                self.load_block(index, arriving[index])

    def take_in(self, indices: Iterable[int], arriving: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Hold these blocks too, in the states that arrive, so that a `hold` of them needs no more memory.

        `let_go` undoes it. Raises ProtocolError when a state does not fit, ModelError when there is no room; then nothing is
        taken in.
        """
        self._check_all(arriving)
        new = tuple(index for index in indices if index not in self._held)
        try:
            for index in new:
                self._taken_in += (index,)
                self._place(index)
                if index in arriving:
                    self.load_block(index, arriving[index])
        except (MemoryError, RuntimeError) as cause:
            self.let_go()
            raise ModelError(f"there is no room here for the blocks {_named(new)}: {cause}") from cause

    def let_go(self) -> None:
        """Give up the new states."""
        for index in self._taken_in:
            self._release(index)
        self._taken_in = ()

    def measure(
        self, indices: Iterable[int], step: int, scale: float | None = None
    ) -> tuple[dict[int, BlockGradients], BlockNorms]:
        """Take the gradients of blocks, with those of earlier batches, and compute their norms; none where no update is due.

        scale: of the loss; the gradients that are returned are without it.
        """
        assert self.clipping is not None, "gradients are clipped block by block otherwise"
        indices = tuple(indices)
        self._gather(indices, step)
        gradients = self.take_gradients(indices)
        if scale is not None:
            for of_block in gradients.values():
                for gradient in of_block.values():
                    gradient.mul_(1 / scale)
        return gradients, {index: self.clipping.norms(index, gradients[index]) for index in indices}

    def update(
        self,
        indices: Iterable[int],
        step: int,
        coefficient: Tensor | None = None,
        rate_drops: int = 0,
        late: Collection[int] = (),
    ) -> None:
        """Take the gradient that backwards have left in each block for the update of `step`, and update where one is due.

        That clips, steps the optimizer at the rate of `step`, and drops the gradients. A block that is not named must have no
        gradient. Where an update has several batches, the gradients of the earlier ones are kept. coefficient: scales gradients
        that `measure` has returned, or skips the update; left out, each is clipped by its block, or by these blocks as if there
        were no others. rate_drops: see `set_rates`. late: blocks of the placement, here and elsewhere, whose updates come late;
        see `prediction`.
        """
        indices = tuple(indices)
        self._drop_tied(indices)
        updated = {index: self._learning[index] for index in indices if index in self._learning}
        if not updated or self._optimizer is None:
            return
        if coefficient is None:
            self._gather(updated, step)
        if not self.recipe.updates_after(step):
            return
        if self._clip(updated, coefficient):
            set_rates(self._optimizer.param_groups, self.recipe, step, rate_drops)
            try:
                self._step(self._optimizer, updated, late)
            except BaseException as cause:
                raise_block_failure("the update of", cause, *map(self.chain.blocks.__getitem__, updated))
            self.weights_version += 1
        for of_block in updated.values():
            if self.recipe.ema is not None and self._averages is not None:
                add_to_averages(self._averages, of_block.values(), self.recipe.ema.decay)
            for parameter in of_block.values():
                parameter.grad = None

    def _step(
        self,
        optimizer: torch.optim.Optimizer,
        updated: Mapping[int, Mapping[str, nn.Parameter]],
        late: Collection[int],
    ) -> None:
        """Step the optimizer: once for blocks whose updates come late and once for the others, if their momentum differs."""
        if self._momentum is None or not self._momentum.entries:
            optimizer.step()
            return
        for is_late in sorted({index in late for index in updated}):
            others = [one for index, of in updated.items() if (index in late) != is_late for one in of.values()]
            waiting = [parameter.grad for parameter in others]
            for parameter in others:
                parameter.grad = None
            try:
                set_late_momentum(optimizer, self._momentum, is_late=is_late)
                optimizer.step()
            finally:
                for parameter, gradient in zip(others, waiting, strict=True):
                    parameter.grad = gradient

    def _gather(self, indices: Collection[int], step: int) -> None:
        """Put the gradients of earlier batches beside what backwards have left, where an update is due; else take all away."""
        if self.recipe.accumulate_batches > 1:
            self._accumulate(indices)
            if self.recipe.updates_after(step):
                self.put_back({index: self._accumulated.pop(index) for index in indices})

    def _clip(self, updated: Mapping[int, Mapping[str, nn.Parameter]], coefficient: Tensor | None) -> bool:
        """Clip the gradients of blocks, given by their parameters; returns whether the update is done, not skipped."""
        if self.clipping is not None:
            if coefficient is None:
                norms = {index: self.clipping.norms(index, _gradients(of)) for index, of in updated.items()}
                coefficient = self.clipping.coefficient(norms)
            if float(coefficient) == SKIP:
                return False
            self.clipping.scale((one for of in updated.values() for one in _gradients(of).values()), coefficient)
        if (clip_norm := self.recipe.optimizer.clip_norm) is not None and self.recipe.optimizer.clip == "block":
            for parameters in updated.values():
                torch.nn.utils.clip_grad_norm_(parameters.values(), clip_norm, foreach=False)
        return True

    def _accumulate(self, indices: Iterable[int]) -> None:
        """Add what backwards have left to the gradients of earlier batches, as autograd does."""
        for index, gradients in self.take_gradients(indices).items():
            kept = self._accumulated.setdefault(index, {})
            for name, gradient in gradients.items():
                if name in kept:
                    kept[name] += gradient
                else:
                    kept[name] = gradient

    def _drop_tied(self, indices: Iterable[int]) -> None:
        """Drop what backwards have left in parameters of blocks that are not here, as where a part of a model is measured."""
        for index in indices:
            for keeper, tied in self._tied[index].items():
                if keeper not in self._learning:
                    for parameter in tied.values():
                        parameter.grad = None

    def put_back(self, gradients: Mapping[int, BlockGradients]) -> None:
        """Have blocks updated by these gradients: they are where backwards would have left them."""
        for index, gradient in gradients.items():
            for name, parameter in self._learning.get(index, {}).items():
                parameter.grad = gradient.get(name)

    def take_gradients(self, indices: Iterable[int]) -> dict[int, BlockGradients]:
        """Take the gradients that backwards have left, by block; the parameters have no gradient afterwards.

        That of a parameter which one of the blocks uses and another block has is that other's.
        """
        taken: dict[int, BlockGradients] = {}
        for index in indices:
            for block, parameters in ((index, self._learning.get(index, {})), *self._tied[index].items()):
                of_block = taken.setdefault(block, {})
                for name, parameter in parameters.items():
                    if parameter.grad is not None:
                        of_block[name], parameter.grad = parameter.grad, None
        return taken

    def block_tensors(self, index: int) -> block_state.BlockTensors:
        """The state of a block that is held, not copied."""
        return block_state.collect(self.chain.blocks[index], self._optimizer, self._averages)

    def put_frozen(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Replace the parameters of a block that do not learn. Raises ProtocolError, as `load_block` does."""
        block_state.put_frozen(self.chain.blocks[index], tensors)
        self._note_frozen(index)

    def check_frozen(self, *indices: int) -> None:
        """Refuse what training has changed in parameters that do not learn, of these blocks that are here, or of all, and a
        change of which of them learn.

        Raises ModelError.
        """
        for index in indices or self._held:
            if index in self._held and (switched := self._switched(index)):
                raise block_state.switched(self.chain.blocks[index], switched)
        for index, before in self._frozen.items():
            block = self.chain.blocks[index]
            if (not indices or index in indices) and block_state.frozen_digest(block) != before:
                raise block_state.changed_while_frozen(block)

    def _switched(self, index: int) -> list[str]:
        """Name the parameters of a block that learn and did not, or do not and did, when it came here."""
        learning, now = self._learning.get(index, {}), self.chain.blocks[index].named_parameters()
        return [name for name, value in now.items() if value.requires_grad is not (name in learning)]

    def _note_frozen(self, index: int) -> None:
        if index in (*self._held, *self._taken_in) and block_state.frozen(block := self.chain.blocks[index]):
            self._frozen[index] = block_state.frozen_digest(block)

    def check_block(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Refuse a state that does not fit one of the chain's blocks under this recipe. Raises ProtocolError."""
        averaged = self._averages is not None
        block_state.check(self.chain.blocks[index], self.recipe.optimizer_of_states, tensors, averaged=averaged)

    def load_block(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Replace the state of a block that is held. Raises ProtocolError, and changes nothing, if it does not fit."""
        config = self.recipe.optimizer_of_states
        block_state.restore(self.chain.blocks[index], self._optimizer, config, tensors, self._averages)
        self._accumulated.pop(index, None)
        self._range_updates.forget()
        self.weights_version += 1

    def take_weights(self, index: int, tensors: Mapping[str, Tensor], one: Slice | None = None) -> None:
        """Go on with parameters and buffers from the owner of a block: all of them, or those of a slice.

        Raises ProtocolError, as `load_block` does.
        """
        block_state.put_weights(self.chain.blocks[index], one or whole(self.chain.blocks[index]), tensors)
        self.weights_version += 1

    def update_slice(self, index: int, one: Slice, gradients: BlockGradients, step: int) -> None:
        """Update a slice of a block by the gradients of its ranges, as `update` does the whole block."""
        if self._optimizer is None:
            return
        with failures_of("the update of", self.chain.blocks[index]):
            self._range_updates.update(self._optimizer, self._learning[index], one, gradients, step, self.rate_drops)
        if self.recipe.ema is not None and self._averages is not None:
            self._range_updates.average(self._averages, self._learning[index], one, step, self.recipe.ema.decay)
        self.weights_version += 1

    def predict(self, copies: Sequence[tuple[nn.Parameter, Tensor]], steps: Sequence[int]) -> None:
        """Move copies of parameters of these blocks the way that the updates of these steps will take them; see `predict`."""
        if self._optimizer is not None and self._momentum is not None:
            predict(self._optimizer, self._momentum, self.recipe, copies, steps)

    def _check_all(self, arriving: Mapping[int, Mapping[str, Tensor]]) -> None:
        for index, tensors in arriving.items():
            self.check_block(index, tensors)

    def _place(self, index: int) -> None:
        block = self.chain.blocks[index]
        self._note_frozen(index)
        block.module.to(self.device)
        learning = {name: value for name, value in block.named_parameters().items() if value.requires_grad}
        if not learning:
            return
        self._learning[index] = learning
        new = build_optimizer(learning, self.recipe.optimizer, self._grouping)
        if self._optimizer is None:
            self._optimizer = new
        else:  # some optimizers have a state before their first step
            for group, more in zip(self._optimizer.param_groups, new.param_groups, strict=True):
                group["params"] += more["params"]
            self._optimizer.state.update(new.state)

    def _release(self, index: int) -> None:
        """Drop a block's optimizer state and move it to the CPU: a block that leaves must not hold a GPU's memory."""
        leaving = set(self._learning.pop(index, {}).values())
        self._accumulated.pop(index, None)
        self._frozen.pop(index, None)
        if self._averages is not None:
            for parameter in leaving:
                self._averages.pop(parameter, None)
        if self._optimizer is not None:
            groups = self._optimizer.param_groups
            for group in groups:
                group["params"] = [parameter for parameter in group["params"] if parameter not in leaving]
            for parameter in leaving:
                self._optimizer.state.pop(parameter, None)
            if not any(group["params"] for group in groups):
                self._optimizer = None
        self.chain.blocks[index].module.to("cpu")


def _named(indices: tuple[int, ...]) -> str:
    return ", ".join(map(str, indices))


def _gradients(parameters: Mapping[str, Tensor]) -> BlockGradients:
    return {name: value.grad for name, value in parameters.items() if value.grad is not None}
