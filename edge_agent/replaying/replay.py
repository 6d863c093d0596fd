"""A recorded run once more, in one process on the CPU: all its workers, each in the order in which it computed then."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain as chained
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from edge_agent.experiment.first_weights import load_weights
from edge_agent.experiment.workload import Workload
from edge_agent.replaying.run_record import RunRecord, Stretch
from edge_agent.sessions.finished import EMA
from shared.codec import FeedbackMode
from shared.errors import ConfigError, DifferentError
from shared.execution.blocks import Method
from shared.execution.counted_batches import Batch
from shared.execution.in_process_session import InProcessSession
from shared.model.chain import Chain
from shared.model.snapshot import same_bits
from shared.placement import Placement
from shared.runtime.order import segments_of
from shared.training.device import prepare_device
from shared.training.losses import LossHead

CPU = torch.device("cpu")


def replay(record: RunRecord, model: Path, progressed: Callable[[int], object] = lambda _step: None) -> int:
    """Do all recorded steps again, and compare the results with the losses of the record and the weights of the file.

    progressed: gets the number of finished steps after each stretch. Returns the number of steps. Raises DifferentError
    with the first step whose loss is another, or the first block whose weights are, and ConfigError for a run that
    cannot be repeated.
    """
    config = record.session.configuration
    workload = Workload(config, record.session.schedule_steps)
    try:
        if workload.samples != record.session.samples or workload.start_digest != record.session.start_digest:
            raise ConfigError(
                "the samples, or the first weights (training.start_from), are not those of the recorded run"
            )
        prepare_device(CPU, deterministic=True)
        replayed = _Replay(workload, record)
        for stretch in record.stretches:
            replayed.do(stretch)
            progressed(stretch.stop_step)
        replayed.compare(model)
    finally:
        workload.close()
    return record.steps


class _Replay:
    """The workers of a run, and their progress."""

    def __init__(self, workload: Workload, record: RunRecord) -> None:
        self._workload = workload
        placements = [one.placement(len(workload.chain.blocks), workload.batch_size) for one in record.stretches]
        if not placements:
            raise DifferentError("no step was recorded")
        self._workers = tuple(dict.fromkeys(chained.from_iterable(one.workers for one in placements)))
        self._chains: dict[str, Chain] = {name: self._first_chain() for name in self._workers}
        deployment, recipe = workload.config.deployment, workload.recipe
        head = LossHead(recipe.loss, None)
        method = Method(head, deployment.backward, FeedbackMode(deployment.feedback))
        self._placement = self._of_all(placements[0])
        self._session = InProcessSession(self._chains, self._placement, recipe, method, CPU)

    def do(self, stretch: Stretch) -> None:
        """The steps of one stretch. Raises DifferentError where a loss is not the record's."""
        workload = self._workload
        placement = self._of_all(stretch.placement(len(workload.chain.blocks), workload.batch_size))
        if placement != self._placement:
            self._session.change(placement)
            self._placement = placement
        steps = range(stretch.first_step, stretch.stop_step)
        orders = {worker: list(self._order(stretch, worker, steps)) for worker in self._session.working}
        found = self._session.follow(orders, steps.start, self._batches(steps))
        for step in steps:
            ours = sorted(part.loss.hex() for part in found[step])
            theirs = sorted(loss.hex() for loss in stretch.losses[step])
            if ours != theirs:
                raise DifferentError(
                    f"the replay parts from the run at step {step}: its loss is {float.fromhex(ours[0]):.9g}, and the run had "
                    f"{float.fromhex(theirs[0]):.9g}"
                )

    def compare(self, model: Path) -> None:
        """Compare the weights with those of a file, and their averages with those of the file beside it, where they are kept.

        Raises DifferentError with the first block that has others.
        """
        states: dict[Path, Callable[[int], Mapping[str, Tensor]]] = {model: self._weights}
        if self._workload.recipe.ema is not None:
            states[model.with_name(EMA)] = self._session.averages
        for file, ours in states.items():
            try:
                theirs = safetensors.torch.load_file(file)
            except (OSError, safetensors.SafetensorError) as cause:
                raise ConfigError(f"{file} cannot be read: {cause}") from cause
            for block in self._workload.chain.blocks:
                for name, tensor in ours(block.index).items():
                    if name in theirs and not same_bits(tensor, theirs[name]):
                        raise DifferentError(
                            f"the replay ends with another {name!r}, of block {block.name!r}, than {file} holds"
                        )

    def _weights(self, index: int) -> Mapping[str, Tensor]:
        block = self._chains[self._placement.owner(index)].blocks[index]
        return block.named_parameters() | block.named_buffers()

    def _order(self, stretch: Stretch, worker: str, steps: range) -> Iterator[int]:
        # Without staleness every order comes to the same bits, and of a worker that has begun again the order is not known.
        told: Mapping[int, list[int]] = stretch.orders.get(worker, {}) if self._placement.staleness else {}
        for step in steps:
            yield from segments_of(told.get(step, ()), self._session.working[worker])

    def _batches(self, steps: range) -> Iterator[Batch]:
        return ((batch.inputs, batch.labels) for batch in self._workload.loader.iterate(steps.start, steps.stop))

    def _of_all(self, placement: Placement) -> Placement:
        """The placement, with the workers beside that have a part in another one."""
        others = tuple(name for name in self._workers if name not in placement.workers)
        return replace(placement, workers=placement.workers + others)

    def _first_chain(self) -> Chain:
        chain, start = self._workload.built_again(), self._workload.config.training.start_from
        if start is not None:
            load_weights(chain.module, start)
        return chain
