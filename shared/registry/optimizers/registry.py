"""The optimizers by name. A new optimizer is a file of its own and its line here."""

from typing import Any

from shared.registry.optimizers.adafactor import ADAFACTOR
from shared.registry.optimizers.adagrad import ADAGRAD
from shared.registry.optimizers.adam import ADAM, ADAMW
from shared.registry.optimizers.lion import LION
from shared.registry.optimizers.rmsprop import RMSPROP
from shared.registry.optimizers.sgd import SGD
from shared.registry.optimizers.spec import OptimizerSpec

OPTIMIZERS: dict[str, OptimizerSpec[Any]] = {
    spec.name: spec
    for spec in (
        SGD,
        ADAM,
        ADAMW,
        RMSPROP,
        ADAGRAD,
        ADAFACTOR,
        LION,
    )
}
"""The first is the default."""
