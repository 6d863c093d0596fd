"""Batches that a function of the user's own makes of items, and the refusal of what is none."""

import re

import pytest
import torch

from edge_agent.data import BatchLoader, Collate, EvaluationLoader, evaluation_batches
from shared.errors import DataError
from shared.model.inputs import InputSpecs
from tests.support.batches import padded
from tests.support.samples import Words

BATCHES = "tests.support.batches"


def collate(name):
    return Collate(f"{BATCHES}:{name}")


def numbered(count=6):
    return [(torch.full((2,), float(index)), index) for index in range(count)]


def test_a_batch_is_what_the_function_makes_of_its_items():
    dataset = Words(8)
    batches = list(evaluation_batches(dataset, 3, collate=collate("padded")))
    assert [len(batch.labels) for batch in batches] == [3, 3, 2]
    for first, batch in zip(range(0, 8, 3), batches, strict=True):
        inputs, labels = padded([dataset[index] for index in range(first, min(first + 3, 8))])
        assert {name: tensor.tolist() for name, tensor in batch.inputs.items()} == {
            name: tensor.tolist() for name, tensor in inputs.items()
        }
        assert torch.equal(batch.labels, labels)


@pytest.mark.slow
def test_worker_processes_make_the_same_batches_whatever_the_function_draws():
    made = []
    for workers in (0, 1):
        loader = BatchLoader(numbered(), 2, 5, False, workers, collate("noisy"))
        made.append([(batch.inputs.tolist(), batch.labels.tolist()) for batch in loader.iterate(0, 6)])
        loader.close()
    assert made[0] == made[1]
    assert len({str(batch) for batch in made[0]}) == 6, "noise of its own for every step"


def test_a_run_that_goes_on_at_any_step_gets_the_same_batches():
    loader = BatchLoader(numbered(), 2, 5, False, 0, collate("noisy"))
    whole, rest = (list(loader.iterate(first, 6)) for first in (0, 4))
    assert torch.equal(whole[4].inputs, rest[0].inputs)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("alone", "returned a value of type Tensor; it must return a pair of inputs and labels"),
        ("unlabelled", "returned labels of type str; they must be a tensor or an array"),
        (
            "too_few",
            "returned inputs float32 of shape (1, 2) for 2 items; the first dimension must be that of the items",
        ),
        ("padded", "failed with TypeError: tuple indices must be integers or slices, not str (batches.py, line "),
    ],
)
def test_what_is_no_batch_is_refused_by_the_name_of_the_key(name, sentence, workers):
    loader = EvaluationLoader(numbered(), 2, workers, collate(name))
    with pytest.raises(DataError, match=re.escape(f"data.collate: '{BATCHES}:{name}' {sentence}")):
        list(loader.iterate())
    loader.close()


def test_inputs_of_another_structure_than_the_example_are_refused():
    example = next(evaluation_batches(Words(8), 4, collate=collate("padded"))).inputs
    like = collate("longest").like(InputSpecs.of(example))
    with pytest.raises(
        DataError,
        match=r"data.collate: '.*:longest' returned inputs attention_mask bool of shape \(2, \d+\), input_ids int64 of shape "
        r"\(2, \d+\), and inputs attention_mask bool of shape \(4, 12\), .* for the first batch of data.train; ",
    ):
        list(evaluation_batches(Words(8), 2, collate=like))
    with pytest.raises(
        DataError, match=r"'.*:noisy' returned inputs float32 of shape \(2, 2\), and inputs attention_mask"
    ):
        list(evaluation_batches(numbered(), 2, collate=collate("noisy").like(InputSpecs.of(example))))


def test_lengths_up_to_the_greatest_are_taken_and_others_are_not():
    example = InputSpecs.of(next(evaluation_batches(Words(8), 4, collate=collate("padded"))).inputs)
    varying = Collate(f"{BATCHES}:longest", 12).like(example)
    lengths = {batch.features[0].shape[1] for batch in evaluation_batches(Words(8), 1, collate=varying)}
    assert len(lengths) > 1
    with pytest.raises(DataError, match=r"returned inputs of length \d+, and data\.longest is 3; raise it, or let the"):
        list(evaluation_batches(Words(8), 1, collate=Collate(f"{BATCHES}:longest", 3)))
    with pytest.raises(DataError, match="must be alike but for the number of items and the length"):
        list(evaluation_batches(numbered(), 2, collate=Collate(f"{BATCHES}:noisy", 12).like(example)))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{BATCHES}:absent", f"data.collate: factory '{BATCHES}:absent': module '{BATCHES}' has no callable 'absent'"),
        ("padded", "data.collate: 'padded' is not a factory; write it as package.module:factory"),
    ],
)
def test_a_function_that_is_not_there_is_named(name, sentence):
    with pytest.raises(DataError, match=re.escape(sentence)):
        Collate(name)
