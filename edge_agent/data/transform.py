"""A function of the user's own that changes whole batches of training (`data.batch_transform`): mixup, cutmix."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from edge_agent.data.collate import Stacked
from edge_agent.data.described import kind_of
from shared.errors import DataError
from shared.factory import load_factory
from shared.foreign import described, foreign_code, place_of
from shared.model.inputs import InputSpecs
from shared.training.losses import label_tensors, widened


@dataclass(frozen=True)
class BatchTransform:
    """A function of inputs and labels of a batch that returns both. Another process imports it again by its name.

    Raises DataError when there is no such function.
    """

    name: str
    """`package.module:function`."""
    _function: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_function", load_factory(self.name, key="data.batch_transform", error=DataError))

    def __reduce__(self) -> tuple[type["BatchTransform"], tuple[str]]:
        return BatchTransform, (self.name,)

    def __call__(self, batch: Stacked) -> Stacked:
        """Change a batch. Inputs keep their types and shapes; labels may become others, each with a row a sample.

        Raises DataError for what is no such batch.
        """

        def failure(cause: BaseException) -> DataError:
            place = f" ({place})" if (place := place_of(cause)) else ""
            return self._refusal(f"failed with {described(cause)}{place}")

        kind, count = InputSpecs.of(batch[0]), len(label_tensors(batch[1])[0])
        with foreign_code(failure):
            made = self._function(*batch)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise self._refusal(f"returned a value {kind_of(made)}; it must return a pair of inputs and labels")
        inputs, labels = made
        columns = labels if isinstance(labels, tuple) and labels else (labels,)
        if not all(isinstance(one, Tensor) and one.dim() and len(one) == count for one in columns):
            raise self._refusal(f"returned labels that are no tensors of {count} samples")
        try:
            same = InputSpecs.of(inputs) == kind
        except (TypeError, AttributeError):
            same = False
        if not same:
            raise self._refusal("returned inputs of another type or shape than it was given")
        widest = tuple(map(widened, columns))
        return inputs, widest if isinstance(labels, tuple) else widest[0]

    def _refusal(self, what: str) -> DataError:
        return DataError(f"data.batch_transform: {self.name!r} {what}")
