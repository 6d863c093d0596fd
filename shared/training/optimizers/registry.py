"""The optimizers by name. A new optimizer is a file of its own and its line here."""

from typing import Any

from shared.training.optimizers.adafactor import ADAFACTOR
from shared.training.optimizers.adagrad import ADAGRAD
from shared.training.optimizers.adam import ADAM, ADAMW
from shared.training.optimizers.lion import LION
from shared.training.optimizers.rmsprop import RMSPROP
from shared.training.optimizers.sgd import SGD
from shared.training.optimizers.spec import OptimizerSpec

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
