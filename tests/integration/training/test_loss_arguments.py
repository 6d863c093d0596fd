"""Losses with arguments: the results are those of one process, and what does not suit the model is said before a trainer is
asked."""

import pytest

from shared.errors import ExitCode
from tests.support.commands import agent_fails
from tests.support.crossed import thinned
from tests.support.placed_runs import trained_as_one_process
from tests.support.placement_kinds import RANGES

pytestmark = pytest.mark.usefixtures("one_thread")
WEIGHTS = [round(0.1 + 0.37 * place, 2) for place in range(10)]
WEIGHTED = f"training.loss={{kwargs={{weight={WEIGHTS}, label_smoothing=0.1}}}}"
RATED = '{{name="tests.support.models.losses:rated", kwargs={{rate={0!r}, shares={1}, places=[9,8,7,6,5,4,3,2,1,0]}}}}'
QUICK = ("labels stay",)


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(zip([*RANGES]), lambda values: values[0] in QUICK))
async def test_every_kind_of_placement_equals_one_process(kind, tmp_path):
    await trained_as_one_process(kind, "mlp", tmp_path, [WEIGHTED, "training.max_steps=12"])


async def test_two_workers_equal_one_process_in_sixteen_bits(tmp_path):
    await trained_as_one_process(
        "two workers", "mlp", tmp_path, [WEIGHTED, 'training.precision="bf16"', "training.max_steps=6"]
    )


@pytest.mark.parametrize(
    ("loss", "code", "says"),
    [
        (
            "{kwargs={weight=[1.0, 2.0]}}",
            ExitCode.MODEL,
            "is given weight of 2 numbers, and the model's output is (32, 10); weight must be a list of numbers",
        ),
        (RATED.format("high", [1.0] * 10), ExitCode.CONFIG, ":rated' fails with training.loss.kwargs: TypeError: "),
        (
            RATED.format(0.5, [1.0]),
            ExitCode.CONFIG,
            ":rated' fails with training.loss.kwargs: IndexError: index 9 is out",
        ),
        (
            '"tests.support.models.losses:rated"',
            ExitCode.CONFIG,
            "training.loss.kwargs: missing a required argument: 'rate'",
        ),
        (
            '"tests.support.models.losses:by_sample"',
            ExitCode.MODEL,
            "gives (32,) for a batch; it must give a tensor of one",
        ),
        (
            '"tests.support.models.losses:as_number"',
            ExitCode.MODEL,
            "gives a float for a batch; it must give a tensor of",
        ),
        (
            '"tests.support.models.losses:in_place"',
            ExitCode.MODEL,
            "changes the output of the model in place, from which its gradient is taken; have it change a copy",
        ),
        ("{kwargs={weight=[inf]}}", ExitCode.CONFIG, "weight of loss 'cross_entropy' has a number that is not finite"),
        ('{name="tests.support.models.losses:WEIGHTED"}', ExitCode.MODEL, "is a module of torch.nn; name a function"),
    ],
)
def test_arguments_that_do_not_suit(loss, code, says):
    agent_fails(code, says, flags=[f"training.loss={loss}"])


async def test_arguments_are_tried_with_samples_of_the_whole_set_where_its_first_are_alike(tmp_path):
    """A folder of pictures has the first class first."""
    sorted_digits = 'data.train={factory="tests.support.samples:SortedDigits"}'
    needs_two = 'training.loss={name="tests.support.models.losses:of_several_classes", kwargs={rate=0.5}}'
    await trained_as_one_process("two workers", "mlp", tmp_path, [sorted_digits, needs_two, "training.max_steps=6"])
