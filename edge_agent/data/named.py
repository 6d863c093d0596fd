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


def check_alike(train: Dataset, test: Dataset | None) -> None:
    """Refuse two data sets that say that the same numbers stand for other classes, or other words. Raises DataError."""
    for what in ("classes", "vocabulary"):
        ours, theirs = (getattr(dataset, what, None) for dataset in (train, test))
        if isinstance(ours, list) and isinstance(theirs, list) and ours != theirs:
            place = next(
                (place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None
            )
            shown = (
                f"{len(ours)} and {len(theirs)}"
                if place is None
                else f"{ours[place]!r} and {theirs[place]!r} as number {place}"
            )
            raise DataError(f"data.train and data.test have other {what}, {shown}; give both the same {what}")
