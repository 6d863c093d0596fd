"""Datasets by the name of what makes them."""

from collections.abc import Mapping
from typing import Any

from edge_agent.data.items import Dataset
from shared.errors import DataError
from shared.factory import load_factory


def load_dataset(factory: str, kwargs: Mapping[str, Any]) -> Dataset:
    """The dataset that `factory` (`package.module:factory`) returns for `kwargs`.

    Raises DataError when there is no such factory or it fails.
    """
    make = load_factory(factory, error=DataError)
    try:
        dataset: Dataset = make(**kwargs)
    except DataError:
        raise
    except Exception as cause:  # the user's own code may raise anything
        raise DataError(f"dataset factory {factory!r} failed with {type(cause).__name__}: {cause}") from cause
    return dataset
