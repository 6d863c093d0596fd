"""Experiments that every kind of run is tried with: small models, every optimizer, and where each model may be cut."""

from itertools import product

import pytest

from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import Linear, ProfiledBlock, pair_profile
from shared.model.features import specs_bytes

STEPS = 30
MODELS = {
    "mlp": [
        'model.factory="shared.model.zoo:mlp"',
        "model.kwargs={depth=4}",
        'data.train={factory="tests.support.samples:FlatDigits"}',
    ],
    "cnn": ["model.kwargs={width=8, blocks=2, dropout=0.2}"],
    "lstm": [
        'model.factory="tests.support.models.recurrent:Recurrent"',
        'data.train={factory="tests.support.samples:Sequences"}',
    ],
    "tied": [
        'model.factory="tests.support.models.tied:tied"',
        'data.train={factory="tests.support.samples:FlatDigits"}',
    ],
    "fickle": [
        'model.factory="tests.support.models.fickle:fickle"',
        'data.train={factory="tests.support.samples:FlatDigits"}',
    ],
}
OPTIMIZERS = {
    "sgd": '{name="sgd", learning_rate=0.05, momentum=0.9, weight_decay=1e-4}',
    "nesterov": '{name="sgd", learning_rate=0.05, momentum=0.9, nesterov=true, clip_norm=0.5}',
    "adam": '{name="adam", learning_rate=0.003}',
    "adamw": '{name="adamw", learning_rate=0.003, weight_decay=0.01, clip_norm=1.0, '
    'groups=[{match=["*bias"], weight_decay=0.0}]}',
    "rmsprop": '{name="rmsprop", learning_rate=0.001, momentum=0.5}',
    "adagrad": '{name="adagrad", learning_rate=0.01, initial_accumulator_value=0.1}',
    "adafactor": '{name="adafactor", learning_rate=0.01, weight_decay=0.01}',
    "lion": '{name="lion", learning_rate=0.001, weight_decay=0.1, clip_norm=1.0, '
    'groups=[{match=["*bias"], learning_rate=0.003}]}',
}
SOME = {(model, optimizer) for model, optimizer in zip([*MODELS] * 2, [*OPTIMIZERS] * 2, strict=False)}
"""Models with optimizers: each model has two, each optimizer one."""
LARGER = ("cnn", "lstm")
EVERY_PAIR = [
    pytest.param(*pair, marks=pytest.mark.full if pair not in SOME else pytest.mark.slow if pair[0] in LARGER else ())
    for pair in product(MODELS, OPTIMIZERS)
]
"""All pairs: those of `SOME` are quick, or slow with the larger models."""
MOST_OPTIMIZERS_SLOW = [
    pytest.param(name, marks=[] if name in ("sgd", "adamw") else pytest.mark.slow) for name in OPTIMIZERS
]
"""All optimizers, of which `make test` tries two."""
SCHEDULE = 'training.schedule={name="cosine", every="step", warmup_steps=5}'
CUTS = {"mlp": 4, "cnn": 4, "lstm": 4, "tied": 4, "fickle": 4}
"""Number of cuts of each model, the last with all blocks on the edge; a test holds this against the chains."""
FIRST_CUTS = {"mlp": 1, "cnn": 1, "lstm": 2, "tied": 1, "fickle": 1}
"""The first that may be: behind an embedding alone, tokens could be read."""


def flags(model, optimizer, *more):
    return [
        *MODELS[model],
        f"training.optimizer={OPTIMIZERS[optimizer]}",
        SCHEDULE,
        f"training.max_steps={STEPS}",
        *more,
    ]


def profile_of(config, alone_seconds=None):
    """A profile of the network of `config`: its sizes as they are, and times as a small device would have them.

    alone_seconds: of a step with all blocks on it; not measured where it is left out.
    """
    chain = Experiment(config).chain
    sizes = tuple(float(specs_bytes(specs)) for specs in chain.features[:-1])
    count = len(chain.blocks)
    return pair_profile(
        model="cnn",
        batch_size=config.data.batch_size,
        blocks=tuple(ProfiledBlock(block.name, 1e4) for block in chain.blocks),
        feature_bytes=(*sizes, None),
        gradient_bytes=(*sizes, None),
        edge_seconds=(None, *(0.002 * cut for cut in range(1, count)), alone_seconds),
        cloud_seconds=(None, *(0.001 for _ in range(1, count)), None),
        encode=Linear(1e-4, 1e-9),
        min_bits=None,
        max_staleness=2,
    )
