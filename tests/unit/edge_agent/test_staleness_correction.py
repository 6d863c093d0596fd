"""The correction of staleness: by itself where it can be and is of use, and refused where it is asked for and cannot be."""

import pytest

from shared.errors import ConfigError
from tests.support.running import edge_config

LATE = "deployment.staleness=2"
PREDICTED = "deployment.staleness_correction=prediction"
MOMENTUM, ADAM = 'training.optimizer={name="sgd", momentum=0.9}', 'training.optimizer={name="adam"}'
PLATEAU = ('training.schedule={name="plateau"}', "training.evaluate_every_epochs=1")
CYCLE = 'training.schedule={name="onecycle"}'


@pytest.mark.parametrize(
    "flags",
    [
        (LATE, MOMENTUM),
        (LATE, ADAM),
        ("deployment.staleness=[[0, 0], [3, 2]]", ADAM),
        (LATE, 'training.optimizer={name="sgd"}'),
        (LATE, 'training.optimizer={name="sgd"}', CYCLE),
        (LATE, ADAM, 'training.schedule={name="onecycle", cycle_momentum=false}'),
        (PREDICTED, ADAM),
        (LATE, ADAM, "deployment.backward=stash"),
    ],
)
def test_weights_are_predicted_by_themselves_where_gradients_are_late(flags):
    assert edge_config(*flags).staleness_correction == "prediction"


@pytest.mark.parametrize(
    "flags",
    [
        (ADAM,),
        (LATE, 'training.optimizer={name="rmsprop"}'),
        (LATE, 'training.optimizer={name="adagrad"}'),
        (LATE, ADAM, *PLATEAU),
        (LATE, ADAM, CYCLE),
        (LATE, ADAM, "deployment.changes=topk1"),
        (LATE, ADAM, 'group={name="line", rank=0, size=2}', "data.shard=rank"),
        (LATE, ADAM, "deployment.staleness_correction=none"),
    ],
)
def test_weights_stay_where_nothing_is_late_or_they_cannot_be_predicted(flags):
    assert edge_config(*flags).staleness_correction == "none"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ('training.optimizer={name="rmsprop"}',),
            "rmsprop has none; take sgd, adam, adamw, or rmsprop with a momentum",
        ),
        ((ADAM, *PLATEAU), "plateau has none; set the correction"),
        ((ADAM, CYCLE), "set training.schedule.cycle_momentum = false"),
    ],
)
def test_a_prediction_that_is_asked_for_and_cannot_be_is_refused(flags, sentence):
    with pytest.raises(ConfigError, match=sentence):
        edge_config(LATE, PREDICTED, *flags)
