"""Loads a dataset by the name of its factory."""

from collections.abc import Mapping
from typing import Any

from edge_agent.data.samples import Dataset
from shared.errors import DataError
from shared.factory import load_factory
from shared.foreign import described, foreign_code


def load_dataset(factory: str, kwargs: Mapping[str, Any]) -> Dataset:
    """The dataset that `factory` (`package.module:factory`) returns for `kwargs`.

    Raises DataError when there is no such factory or it fails.
    """
    make = load_factory(factory, error=DataError)

    def failure(cause: BaseException) -> DataError:
        if isinstance(cause, DataError):
            return cause
        return DataError(f"dataset factory {factory!r} failed with {described(cause)}")

    with foreign_code(failure):
        dataset: Dataset = make(**kwargs)
    return dataset
