"""Flags of the members and trainers of a group, and members that train in this process."""

import asyncio

from isthmus import run_training
from tests.support.experiments import flags
from tests.support.running import edge_config

STEPS = 6
PERMITTED = ['privacy.gradients_to=["trainer"]']
ACCEPTING = "server.accept_inputs=true"
SHARD = 'data.shard="rank"'


def group_of(size, *more):
    """Return the trainer's flags for a group."""
    return [f'groups=[{{name="line", size={size}, checkpoint_steps=2}}]', ACCEPTING, *more]


def member_flags(rank, model="mlp", optimizer="adamw", size=None, more=()):
    """Return the flags of a member."""
    group = f'group={{name="line", rank={rank}{"" if size is None else f", size={size}"}}}'
    return [*flags(model, optimizer), f"training.max_steps={STEPS}", group, *PERMITTED, *more]


def member(rank, server, **chosen):
    """Return the configuration of a member."""
    return edge_config(*member_flags(rank, **chosen), f"trainer.address={server.address}")


def trainers_at(**addresses):
    """Return a member's flags for trainers, by name."""
    named = ", ".join(f'{{name="{name}", address="{address}"}}' for name, address in addresses.items())
    names = ", ".join(f'"{name}"' for name in addresses)
    return [f"trainers=[{named}]", f"privacy.gradients_to=[{names}]"]


def member_of_two(rank, near, far, **chosen):
    """Return the configuration of a member with two trainers."""
    return edge_config(*member_flags(rank, **chosen), *trainers_at(near=near.address, far=far.address))


def member_of(trainers, rank, **chosen):
    """Return the configuration of a member with these trainers, one or two."""
    return (member if len(trainers) == 1 else member_of_two)(rank, *trainers, **chosen)


async def trained(configs):
    """Train all members at once, and return the state of each."""
    results = await asyncio.gather(*(run_training(config) for config in configs))
    return [result.module.state_dict() for result in results]
