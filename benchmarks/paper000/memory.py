"""Paper 000's Fig. 22: what the device holds at most, alone, as JointDNN trains, and with late features in 8 bits.

Agents are real processes, beside a trainer on this machine. JointDNN's way is the same cut without late features, in fp32: its
own choice of the cut is another one on every link.
"""

from collections.abc import Iterator, Sequence
from statistics import median

import torch

from benchmarks.memory import held_and_resident
from benchmarks.paper000.tasks import TASKS, Size
from benchmarks.support.processes import trainer_process
from shared.model.build import build_checked_chain

_STALENESS = 5
_STEPS = _STALENESS + 3
_OURS = f"deployment.staleness={_STALENESS}", "deployment.staleness_correction=none", "deployment.codec=uniform8"
"""The paper predicts no weights."""
_MB = 1e6


def memory_text(tasks: Sequence[str], size: str, repeats: int) -> str:
    """Measure, and return a table for each task. repeats: runs of each kind, of which the median counts."""
    parts = [
        "**fig22: Memory of the device.** Paper: 1 % more than JointDNN; on a Raspberry Pi 19.51 % less than the device alone, "
        "and 2.94 % more where the cut is late.",
        f"Size `{size}`, batches of 32; MB that the process has allocated and not freed, at most, the interpreter and torch "
        f"included; K = {_STALENESS}, 8 bits up.",
    ]
    with trainer_process("compute.threads=1", "compute.device=cpu") as address:
        for task in tasks:
            chosen = TASKS[task].sizes[size]
            title = f"*{TASKS[task].title}*: `{chosen.factory.partition(':')[2]}`."
            parts += [title, "\n".join(_rows(address, chosen, repeats))]
    return "\n\n".join(parts)


def _rows(address: str, size: Size, repeats: int) -> Iterator[str]:
    columns = ("cut", "device alone", "as JointDNN", "ours", "ours over JointDNN", "ours over the device alone")
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    blocks = len(build_checked_chain(size.factory, size.kwargs, 0, torch.zeros(1, 3, 32, 32)).blocks)
    alone = _held(address, size, blocks, (), repeats)
    for cut in size.cuts:
        serial = _held(address, size, cut, (), repeats)
        ours = _held(address, size, cut, _OURS, repeats)
        held = " | ".join(f"{each / _MB:.1f}" for each in (alone, serial, ours))
        yield f"| {cut} | {held} | {ours / serial:.3f} | {ours / alone:.3f} |"


def _held(address: str, size: Size, cut: int, flags: Sequence[str], repeats: int) -> float:
    kwargs = ", ".join(f"{key}={value!r}" for key, value in size.kwargs.items())
    settings = [
        f'model.factory="{size.factory}"',
        f"model.kwargs={{{kwargs}}}",
        f'data.train={{factory="benchmarks.networks:RandomImages", kwargs={{samples={32 * _STEPS}}}}}',
        "training.epochs=1",
        f"deployment.cut={cut}",
        *flags,
    ]
    return median(held_and_resident(address, settings)[0] for _ in range(repeats))
