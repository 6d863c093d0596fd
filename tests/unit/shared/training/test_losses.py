"""The loss at the end of the chain: its value for a batch, and the inputs that it refuses."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from shared.errors import ConfigError, DataError, ModelError
from shared.registry import LOSSES, Labels, LossConfig
from shared.training.losses import LossHead, counts_of, narrowed, whole_loss, widened
from tests.support.models.losses import of_class_and_quarters

OF_EQUAL_SHAPES = {"mse": nn.MSELoss(), "l1": nn.L1Loss(), "bce_with_logits": nn.BCEWithLogitsLoss()}
SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
each_loss = pytest.mark.parametrize("spec", LOSSES.values(), ids=LOSSES)


def drawn(spec, samples=6):
    """Draw an output of three numbers a sample, and labels that the loss accepts with it."""
    torch.manual_seed(1)
    if spec.labels is Labels.TOKENS:
        return torch.randn(samples, 5, 3), torch.randint(3, (samples, 5))
    output = torch.randn(samples, 3)
    return output, torch.randint(3, (samples,)) if spec.labels is Labels.CLASSES else torch.rand_like(output)


@each_loss
def test_every_loss_is_the_mean_over_the_batch(spec):
    (output, labels), head = drawn(spec), LossHead(LossConfig(name=spec.name), None)
    parts = [head.evaluate((output[rows],), labels[rows]) for rows in (slice(2), slice(2, None))]
    assert whole_loss(parts).loss == pytest.approx(head.evaluate((output,), labels).loss, rel=1e-5)


@each_loss
def test_every_loss_falls_along_its_gradient(spec):
    (output, labels), head = drawn(spec), LossHead(LossConfig(name=spec.name), None)
    before, (gradient,) = head.gradient((output,), labels)
    assert head.evaluate((output - 0.01 * gradient,), labels).loss < before.loss


@each_loss
def test_every_loss_refuses_labels_of_another_batch(spec):
    if spec.labels is Labels.ANY:
        pytest.skip("its function decides which labels it takes")
    (output, _), (_, labels) = drawn(spec), drawn(spec, samples=5)
    with pytest.raises(ModelError, match=f"loss '{spec.name}' takes"):
        LossHead(LossConfig(name=spec.name), None).evaluate((output,), labels)


@each_loss
@pytest.mark.parametrize("weighted", [False, True])
def test_batches_divided_by_what_counts_have_the_gradient_of_one_larger_batch(spec, weighted):
    if weighted and "weight" not in spec.arguments:
        pytest.skip("it has no weights of classes")
    loss = LossConfig(name=spec.name, kwargs={"weight": [0.5, 2.0, 0.25]} if weighted else {})
    (output, labels), head = drawn(spec), LossHead(loss, None)
    if not labels.is_floating_point():
        labels.flatten()[1:4] = -100  # of the first batch more than of the second
    parts = slice(2), slice(2, None)
    counts = counts_of(loss, [labels[rows] for rows in parts])
    found = [
        head.gradient((output[rows],), labels[rows], 1.0, 2, None, of) for rows, of in zip(parts, counts, strict=True)
    ]
    whole, (expected,) = head.gradient((output,), labels)
    torch.testing.assert_close(torch.cat([gradient for _, (gradient,) in found]), expected)
    assert [one.loss for one, _ in found] == pytest.approx(
        [head.evaluate((output[rows],), labels[rows]).loss for rows in parts]
    )
    halves = [
        head.gradient((output[rows],), labels[rows], 0.5, 1, None, counts_of(loss, [labels])[0])
        for rows in (slice(3), slice(3, None))
        if loss.is_divisible
    ]
    assert not halves or whole_loss([one for one, _ in halves]).loss == pytest.approx(whole.loss)


def test_a_batch_of_which_nothing_counts_adds_nothing_to_its_update():
    loss, nothing = LossConfig(), torch.full((3,), -100)
    counts = counts_of(loss, [nothing, torch.arange(3)])
    found, (gradient,) = LossHead(loss, None).gradient((torch.eye(3),), nothing, counts=counts[0])
    assert (found.loss, gradient.abs().sum()) == (0, 0)
    alone, _ = LossHead(loss, None).gradient((torch.eye(3),), nothing, counts=counts_of(loss, [nothing])[0])
    assert alone.loss != alone.loss, "as the mean of nothing is"


def test_a_label_without_a_weight_is_told():
    with pytest.raises(DataError, match="a label is no class of 0 to 1, for which"):
        counts_of(LossConfig(kwargs={"weight": [1.0, 2.0]}), [torch.tensor([0, 2])])


def test_probabilities_of_classes_are_one_label_a_sample():
    assert counts_of(LossConfig(), [torch.rand(4, 3)])[0].tolist() == [4, 4]


@given(st.sampled_from(sorted(OF_EQUAL_SHAPES)), SHAPES, SHAPES)
def test_output_and_labels_have_equal_shapes_or_are_refused(name, shape, other):
    """A label that is one number fits an output of one number: (B,) and (B, 1). No shape is ever stretched."""
    head, output, labels = LossHead(LossConfig(name=name), None), torch.rand(shape), torch.rand(other)
    if shape in (other, (*other, 1)):
        fitted = labels.reshape(shape)
        assert head.evaluate((output,), labels).loss == OF_EQUAL_SHAPES[name](output, fitted).item()
        leaf = output.clone().requires_grad_()
        OF_EQUAL_SHAPES[name](leaf, fitted).backward()
        assert torch.equal(head.gradient((output,), labels)[1][0], leaf.grad)
        return
    for judge in (head.evaluate, head.gradient):
        with pytest.raises(ModelError) as refusal:
            judge((output,), labels)
        assert f"the model's output is {shape}, the labels are {other}" in str(refusal.value)


def test_a_number_a_sample_is_not_held_against_a_column():
    """torch would broadcast these to every pair of samples."""
    with pytest.raises(ModelError, match=r"loss 'mse' takes labels of the output's own shape"):
        LossHead(LossConfig(name="mse"), None).gradient((torch.rand(4),), torch.rand(4, 1))


WEIGHTED = "tests.support.models.losses:WEIGHTED"


@pytest.mark.parametrize(
    ("name", "is_what"), [("torch.nn:CrossEntropyLoss", "a class"), (WEIGHTED, "a module of torch")]
)
def test_a_module_of_torch_is_no_loss_and_the_way_is_said(name, is_what):
    with pytest.raises(ModelError, match=rf"loss '{name}' is {is_what}.*kwargs = {{ weight = \[1\.0, 2\.0\] }}"):
        LossHead(LossConfig(name=name), None)


WEIGHTS = [0.5, 0, 2]
ARGUMENTS = [
    ("cross_entropy", {"weight": WEIGHTS, "label_smoothing": 0.1}, nn.CrossEntropyLoss),
    ("token_cross_entropy", {"weight": WEIGHTS, "label_smoothing": 0.1}, nn.CrossEntropyLoss),
    ("bce_with_logits", {"pos_weight": WEIGHTS}, nn.BCEWithLogitsLoss),
    ("bce_with_logits", {"pos_weight": [3.0]}, nn.BCEWithLogitsLoss),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "kwargs", "plain"), ARGUMENTS)
def test_a_loss_with_arguments_is_torchs_bit_for_bit(name, kwargs, plain, dtype):
    output, labels = drawn(LOSSES[name])
    output, labels = output.to(dtype), labels.to(dtype) if labels.is_floating_point() else labels
    own = {key: torch.tensor(value, dtype=dtype) if isinstance(value, list) else value for key, value in kwargs.items()}
    leaf = output.clone().requires_grad_()
    expected = plain(**own)(leaf.flatten(0, -2), labels.flatten() if name.startswith("token") else labels)
    expected.backward()
    loss, (gradient,) = LossHead(LossConfig(name=name, kwargs=kwargs), None).gradient((output,), labels)
    assert loss.loss == expected.item()
    assert torch.equal(gradient, leaf.grad)


def test_weights_have_the_precision_of_the_loss_under_autocast():
    (output, labels), head = (
        drawn(LOSSES["cross_entropy"]),
        LossHead(LossConfig(kwargs={"weight": [0.3, 0.7, 1]}), None),
    )
    with torch.autocast("cpu", torch.bfloat16):
        found = head.evaluate((output.bfloat16(),), labels).loss
        assert found == nn.functional.cross_entropy(output.bfloat16(), labels, torch.tensor([0.3, 0.7, 1.0])).item()


def test_a_function_of_the_users_gets_its_arguments_and_lists_of_numbers_as_tensors():
    output, labels = drawn(LOSSES["cross_entropy"])
    given = {"rate": 0.5, "shares": [0.5, 1.0, 2.0], "places": [2, 1, 0]}
    head = LossHead(LossConfig(name=f"{LOSSES_OF_OURS}:rated", kwargs=given), None)
    expected = 0.5 * nn.functional.cross_entropy(output.flip(1), labels, torch.tensor([2.0, 1.0, 0.5]))
    assert head.evaluate((output,), labels).loss == expected.item()


LOSSES_OF_OURS = "tests.support.models.losses"


@pytest.mark.parametrize("kwargs", [{}, {"rate": 0.5}, {"rate": 0.5, "shares": [1.0], "places": [0], "margin": 1}])
def test_arguments_that_a_function_of_the_users_does_not_take(kwargs):
    says = r":rated' cannot be called with an output, labels and training\.loss\.kwargs: .*'(rate|shares|margin)'"
    with pytest.raises(ConfigError, match=says):
        LossHead(LossConfig(name=f"{LOSSES_OF_OURS}:rated", kwargs=kwargs), None)


@pytest.mark.parametrize(
    ("name", "kwargs", "says"),
    [
        (
            "cross_entropy",
            {"weight": [1.0, 2.0]},
            "given weight of 2 numbers, and the model's output is (6, 3); weight must be",
        ),
        (
            "token_cross_entropy",
            {"weight": [1.0] * 5},
            "given weight of 5 numbers, and the model's output is (6, 5, 3)",
        ),
        ("bce_with_logits", {"pos_weight": [1.0] * 4}, "given pos_weight of 4 numbers"),
        ("bce_with_logits", {"pos_weight": [[1.0] * 3] * 2}, "given pos_weight of 2 x 3 numbers"),
    ],
)
def test_weights_of_another_number_of_classes_are_refused(name, kwargs, says):
    (output, labels), head = drawn(LOSSES[name]), LossHead(LossConfig(name=name, kwargs=kwargs), None)
    with pytest.raises(ModelError) as refusal:
        head.evaluate((output,), labels)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "kwargs", "says"),
    [
        ("mse", {"weight": [1.0]}, "loss 'mse' takes no 'weight'; it takes no arguments"),
        ("cross_entropy", {"pos_weight": [1.0]}, "takes no 'pos_weight'; it takes weight, label_smoothing"),
        ("cross_entropy", {"reduction": "sum"}, "is given a reduction; a loss is the mean over the batch"),
        ("mine:loss", {"reduction": "mean"}, "is given a reduction"),
        ("cross_entropy", {"weight": 1.0}, "weight of loss 'cross_entropy' is 1.0; it must be a list of numbers"),
        ("cross_entropy", {"weight": [1.0, -1.0]}, "must be a list of numbers of 0 or more, one for each class"),
        ("cross_entropy", {"weight": [[1.0]]}, "must be a list of numbers"),
        ("cross_entropy", {"weight": []}, "must be a list of numbers"),
        ("cross_entropy", {"weight": [True]}, "must be a list of numbers"),
        ("cross_entropy", {"label_smoothing": 1.5}, "is 1.5; it must be a number of 0 to 1"),
        ("bce_with_logits", {"pos_weight": [[1.0], [1.0, 2.0]]}, "must be a list of numbers"),
        ("cross_entropy", {"weight": [float("nan")]}, "weight of loss 'cross_entropy' has a number that is not"),
        ("mine:loss", {"deep": {"er": [[float("inf")]]}}, "deep of loss 'mine:loss' has a number"),
        ("mine:loss", {"long": [1.0] * 10_000}, "are 50010 characters of JSON; at most 32768 are taken"),
    ],
)
def test_arguments_that_no_loss_takes_are_refused(name, kwargs, says):
    with pytest.raises(ValidationError) as refusal:
        LossConfig.model_validate_json(json.dumps({"name": name, "kwargs": kwargs}))
    assert says in str(refusal.value)


@pytest.mark.parametrize("name", ["cross_entropy", "token_cross_entropy"])
def test_a_loss_by_weights_of_classes_is_not_computed_for_a_part_of_a_batch(name):
    """The mean goes by the weights of the labels that a part happens to have."""
    (output, labels), head = drawn(LOSSES[name]), LossHead(LossConfig(name=name, kwargs={"weight": [1.0] * 3}), None)
    with pytest.raises(ModelError, match="one worker must have the last block for all samples"):
        head.gradient((output[:3],), labels[:3], share=0.5)


def test_a_loss_that_gives_a_number_a_sample_is_refused():
    distances = "torch.nn.functional:pairwise_distance"
    with pytest.raises(
        ModelError, match=rf"loss '{distances}' gives \(3,\) for a batch; it must give a tensor of one number"
    ):
        LossHead(LossConfig(name=distances), None).compute((torch.randn(3, 4),), torch.randn(3, 4))


def test_class_labels_need_no_shape_but_their_own():
    loss, (gradient,) = LossHead(LossConfig(name="cross_entropy"), None).gradient((torch.eye(3),), torch.arange(3))
    assert (loss.correct, loss.samples) == (3, 3)
    assert gradient.shape == (3, 3)


@pytest.mark.parametrize(
    ("output", "labels", "says"),
    [
        ((8, 64, 100), (8, 64), "this output seems to have its classes last"),
        ((8, 10), (8, 2), "takes an output whose second dimension is the classes"),
        ((8, 10), (8, 1), "the model's output is (8, 10), the labels are (8, 1)"),
        ((8, 10, 4, 4), (8, 4), "the labels are (8, 4)"),
        ((8,), (8,), "takes an output whose second dimension is the classes"),
    ],
)
def test_class_labels_of_another_shape_than_the_output_wants_are_refused(output, labels, says):
    head = LossHead(LossConfig(name="cross_entropy"), None)
    with pytest.raises(ModelError) as refusal:
        head.evaluate((torch.rand(output),), torch.zeros(labels, dtype=torch.int64))
    assert says in str(refusal.value)


def test_the_loss_of_tokens_is_the_mean_over_those_that_count():
    output, labels = torch.randn(4, 5, 7), torch.randint(7, (4, 5))
    labels[0, 2:] = labels[3] = -100
    leaf = output.clone().requires_grad_()
    expected = nn.functional.cross_entropy(leaf.view(-1, 7), labels.view(-1), ignore_index=-100)
    expected.backward()
    loss, (gradient,) = LossHead(LossConfig(name="token_cross_entropy"), None).gradient((output,), labels)
    assert (loss.loss, loss.correct, loss.samples) == (expected.item(), None, 4)
    assert torch.equal(gradient, leaf.grad)


@pytest.mark.parametrize(("output", "labels"), [((8, 100), (8, 3)), ((8, 5, 100), (8, 6)), ((8, 5, 100), (8,))])
def test_labels_of_tokens_have_a_place_each(output, labels):
    with pytest.raises(ModelError, match="whose last dimension is the tokens' scores"):
        LossHead(LossConfig(name="token_cross_entropy"), None).evaluate(
            (torch.rand(output),), torch.zeros(labels, dtype=torch.int64)
        )


def test_the_loss_of_tokens_is_not_computed_for_a_part_of_a_batch():
    head, labels = LossHead(LossConfig(name="token_cross_entropy"), None), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(ModelError, match="one worker must have the last block for all samples"):
        head.gradient((torch.rand(2, 5, 7),), labels, share=0.5)


def test_whole_numbers_are_no_labels_of_a_binary_cross_entropy():
    with pytest.raises(ModelError, match=r"'bce_with_logits' takes labels with fractions, and these are integers"):
        LossHead(LossConfig(name="bce_with_logits"), None).evaluate((torch.rand(4, 3),), torch.ones(4, 3).long())


def test_class_numbers_with_a_fraction_are_refused():
    with pytest.raises(ModelError, match="class numbers must be integers"):
        LossHead(LossConfig(name="cross_entropy"), None).evaluate((torch.rand(8, 10),), torch.rand(8))


def test_probabilities_are_labels_of_the_outputs_own_shape():
    output, labels = torch.rand(4, 3), torch.softmax(torch.rand(4, 3), 1)
    assert LossHead(LossConfig(name="cross_entropy"), None).evaluate((output,), labels).loss == pytest.approx(
        nn.CrossEntropyLoss()(output, labels).item()
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 300) | st.integers(-40_000, 70_000), max_size=5))
def test_class_numbers_travel_in_few_bits_and_arrive_as_they_were(numbers):
    labels = torch.tensor(numbers, dtype=torch.int64)
    travelling = narrowed(labels)
    assert torch.equal(widened(travelling), labels)
    assert widened(travelling).dtype == torch.int64


@pytest.mark.parametrize(
    ("numbers", "item_bytes"),
    [([0, 255], 1), ([-100, 20], 1), ([-100, 128], 2), ([0, 256], 2), ([40_000], 4), ([2**31], 8)],
)
def test_class_numbers_take_no_more_than_they_need(numbers, item_bytes):
    assert narrowed(torch.tensor(numbers)).itemsize == item_bytes


def test_numbers_with_a_fraction_travel_as_they_are():
    labels = torch.tensor([0.5, 2.0], dtype=torch.float64)
    assert narrowed(labels) is labels
    assert widened(labels) is labels


def test_a_loss_of_the_users_takes_a_tuple_and_gives_each_float_its_gradient():
    """The third output is of integers, and the fourth has no part in the loss."""
    first, second = torch.randn(4, 3), torch.randn(4, 2)
    outputs = (first, second, torch.arange(4), torch.randn(4))
    loss, gradients = LossHead(LossConfig(name="tests.support.models.losses:of_two"), None).gradient(
        outputs, torch.ones(4)
    )
    assert loss.loss == pytest.approx(float(first.square().mean() + second.sum(1).mean()))
    torch.testing.assert_close(gradients[0], first / 6)
    torch.testing.assert_close(gradients[1], torch.full((4, 2), 0.25))
    assert gradients[2:] == (None, None)
    assert loss.correct is None


@each_loss
def test_every_loss_of_ours_takes_one_tensor(spec):
    output, labels = drawn(spec)
    with pytest.raises(ModelError, match="takes one tensor, and the model returns 2; let model"):
        LossHead(LossConfig(name=spec.name), None).compute((output, output), labels)


def test_a_loss_of_the_users_own_takes_several_labels_as_a_tuple():
    output, classes, shares = torch.randn(4, 10), torch.randint(10, (4,)), torch.rand(4, 4)
    head = LossHead(LossConfig(name="tests.support.models.losses:of_class_and_quarters"), None)
    found = head.evaluate((output,), (classes, shares))
    assert found.loss == pytest.approx(of_class_and_quarters(output, (classes, shares)).item())
    assert (found.correct, found.samples) == (None, 4)


def test_a_loss_of_ours_refuses_several_labels():
    with pytest.raises(ModelError, match="loss 'mse' takes one tensor of labels, and the labels are 2"):
        LossHead(LossConfig(name="mse"), None).gradient((torch.rand(4, 2),), (torch.rand(4, 2), torch.rand(4, 2)))
