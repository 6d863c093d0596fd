"""The check that labels are classes of the model, where samples are read: there their numbers are known."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import DataError
from shared.training.losses import LEFT_OUT, BatchLabels, label_tensors, widened


@dataclass(frozen=True)
class Classes:
    """The classes that the labels of a data set may be."""

    key: str
    """The configuration's key of the data set."""
    count: int
    """The outputs of the model, one for each class."""

    def check(self, labels: BatchLabels, indices: Sequence[int]) -> None:
        """Refuse integer labels that are none of them, nor -100, which counts for nothing. Raises DataError.

        labels: a row a sample. indices: of these samples, for the sentence.
        """
        column = label_tensors(labels)[0]
        if column.is_floating_point() or not column.numel():
            return
        numbers = column.numpy(force=True)  # quicker than torch for a few numbers
        if numbers.min() >= 0 and numbers.max() < self.count:
            return
        column = widened(column)
        wrong = (column != LEFT_OUT) & ((column < 0) | (column >= self.count))
        if wrong.any():
            row = int(wrong.reshape(len(column), -1).any(1).nonzero()[0])
            label = int(column[row][wrong[row]].flatten()[0])
            raise DataError(
                f"the label of sample {indices[row]} of {self.key} is {label}, and the model has {self.count} outputs, for "
                f"classes of 0 to {self.count - 1}; number the classes from 0, or give the model an output for each"
            )
