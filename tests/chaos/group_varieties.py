"""The members and the trainers of disturbed groups: what a seed draws of their models, and their flags."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos.links import STALL_SECONDS
from tests.chaos.varieties import BY_BLOCK, EVERY_TEN_STEPS, EXPERIMENT, EXTRAS_SHARE, PERCEPTRON, RECIPES
from tests.support.running import ALLOWED

NAME, CHECKPOINT_STEPS, BATCH_SIZE = "line", 8, 8
SLICED_EVERY = 2
"""Every second span of so many seeds is of models of which some blocks go in slices."""
LATE_EVERY = 4
"""Every second span of so many seeds is of groups with K of 1 to 5, whose members stall and whose links are lost many times."""
SLICED = (
    'model.factory="shared.model.zoo:mlp"',
    "model.kwargs={depth=4, hidden=362}",
    'training.optimizer={name="adamw", learning_rate=0.003}',
)
"""A model of two blocks of two slices each, at two trainers one of each, and an optimizer that updates slices."""
FINISH = "finish"
EXTRAS = RECIPES | {
    "mean of tokens": (
        'data.train={factory="tests.support.samples:PartlyLabelled", kwargs={flat=true}}',
        'training.mean="token"',
    ),
    FINISH: (),
}
"""Parts of the recipe that a group may have beside its model, with evaluations by samples of each member's own, and its
own best weights; and a member that is asked to finish."""
SLOWLY = 'data.train={factory="tests.support.samples:Slow", kwargs={seconds=0.05}}'
"""Samples of members that take long enough for another one to join."""
STEPS_OF_TRAINERS = "steps"
"""Folder of the trainers' logs."""
SHARD = 'data.shard="rank"'


def has_slices(seed: int) -> bool:
    """Tell whether some blocks go in slices in the run of a seed."""
    return bool(seed // SLICED_EVERY % 2)


def staleness_of(seed: int) -> int:
    """Return K of the run of a seed."""
    return 1 + seed // 5 % 5 if seed // LATE_EVERY % 2 else 0


def draw_extras(seed: int, *, always: bool, joined: bool) -> tuple[str, ...]:
    """Draw the names of a group's extras, by dice of their own: nothing else that a seed draws depends on them.

    joined: by a newcomer, whose samples take their time, and of whose evaluations no loop here has a rate.
    """
    dice = random.Random(f"extras of group {seed}")
    if dice.random() >= EXTRAS_SHARE and not always:
        return ()
    names = [name for name in EXTRAS if dice.random() < 0.5] or ["average"]
    return tuple(name for name in names if name in ("average", FINISH) or not joined)


def asked_after(seed: int, rank: int, size: int, extras: Sequence[str]) -> list[str]:
    """Return the flag of a callback that asks a member to finish again and again after a step; none for all but one member."""
    dice = random.Random(f"finishing {seed}")
    asked, after = dice.randrange(size), dice.randint(5, 60)
    if FINISH not in extras or rank != asked:
        return []
    return [f'training.callbacks=[{{name="tests.support.told:finishing", kwargs={{after={after}}}}}]']


def flags_of_extras(extras: Sequence[str], rank: int) -> list[str]:
    """Return the flags of a member's extras, but where it keeps something."""
    if not extras:
        return []
    tested = f'data.test={{factory="tests.support.samples:SomeDigits", kwargs={{rank={rank}}}}}'
    return [*(flag for name in extras for flag in EXTRAS[name]), tested, EVERY_TEN_STEPS, "training.keep_best={}"]


def member_flags(rank: int, size: int, addresses: Mapping[str, str], *, is_sliced: bool) -> list[str]:
    """Return the flags of a member; one of rank `size` joins later. addresses: of the trainers, by name."""
    named = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
    return [
        *EXPERIMENT,
        *(SLICED if is_sliced else (*PERCEPTRON, BY_BLOCK)),
        f"data.batch_size={BATCH_SIZE}",
        *([SHARD] if rank < size else []),
        f'group={{name="{NAME}", rank={rank}, size={size}}}',
        f"trainers=[{named}]",
        f"privacy.gradients_to={json.dumps(list(addresses))}",
        f"link.stall_seconds={STALL_SECONDS}",
        "control.listen=none",
    ]


def trainer_flags(folder: Path, name: str, port: int, size: int, most: int) -> list[str]:
    return [
        f"server.listen=127.0.0.1:{port}",
        f"models.allowed={ALLOWED}",
        "compute.threads=1",
        'compute.device="cpu"',
        "control.listen=none",
        f"checkpoints.location={folder / name}",
        f"checkpoints.step_log={folder / STEPS_OF_TRAINERS / name}",
        f"link.stall_seconds={STALL_SECONDS}",
        "server.accept_inputs=true",
        f'groups=[{{name="{NAME}", size={size}, most={most}, checkpoint_steps={CHECKPOINT_STEPS}}}]',
    ]
