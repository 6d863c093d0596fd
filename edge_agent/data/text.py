"""Texts of a table as numbers of words: `{ text = "reviews.csv", length = 64 }`."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from edge_agent.data.labels import labels_of
from edge_agent.data.rows import Broken, RowsDataset, read_columns
from edge_agent.data.tensors import TensorDataset
from shared.errors import DataError

PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"\w+|[^\w\s]")


def text(
    path: str,
    column: str = "text",
    label: str = "label",
    length: int = 128,
    vocabulary: str | None = None,
    words: int = 20_000,
    classes: Sequence[str] | None = None,
    delimiter: str = ",",
) -> TensorDataset | RowsDataset:
    """Texts as the numbers of their words, int64 [length]: 0 behind the end, 1 for a word that has no number.

    path, label, classes, delimiter: as of `table`. column: that of the texts. length: words that count; the others are left
    out. vocabulary: a file with a word in each line, of which the first has number 2; or the table whose most frequent words
    have numbers, which is this one if left out. words: at most so many then. Words are runs of letters and digits in lower
    case, and single marks.
    Raises DataError, naming the file.
    """
    place = Path(path).expanduser()
    for name, value in (("length", length), ("words", words)):
        if not isinstance(value, int) or value < 1:
            raise DataError(f"{name} is {value!r}; it must be a whole number of 1 or more")
    known = _vocabulary(place if vocabulary is None else Path(vocabulary).expanduser(), column, words, delimiter)
    numbers = {word: number for number, word in enumerate(known, start=UNKNOWN + 1)}
    broken, cells, rows = Broken(place), list[Any](), list[list[int]]()
    _, chunks = read_columns(place, [column, label], delimiter, broken)
    for chunk in chunks:
        texts, labels = chunk.columns
        cells.extend(labels)
        for row, content in enumerate(texts):
            found = [numbers.get(word, UNKNOWN) for word in _words(content)[:length]]
            if not found:
                broken.note(chunk.first + row, f"column {column!r} is empty")
            rows.append(found + [PADDING] * (length - len(found)))
    if not rows:
        raise DataError(f"{place} has no row beside its first")
    found_labels, found_classes = labels_of(place, label, cells, classes, broken)
    inputs = torch.tensor(rows)
    dataset = RowsDataset(inputs, found_labels, broken) if broken else TensorDataset(inputs, found_labels)
    dataset.classes, dataset.vocabulary = found_classes, known
    return dataset


def _words(content: Any) -> list[str]:
    return [] if content is None else _WORD.findall(str(content).lower())


def _vocabulary(path: Path, column: str, most: int, delimiter: str) -> list[str]:
    if path.suffix in (".csv", ".tsv", ".parquet"):
        _, chunks = read_columns(path, [column], delimiter, Broken(path))
        counts = Counter(word for chunk in chunks for content in chunk.columns[0] for word in _words(content))
        ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return [word for word, _ in ranked[:most]]
    return list(_lines(path))


def _lines(path: Path) -> Iterator[str]:
    seen = set[str]()
    try:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            if not line.strip() or line in seen:
                raise DataError(
                    f"{path}: line {number} is {'empty' if not line.strip() else 'there before'}; each has a word"
                )
            seen.add(line)
            yield line
    except (OSError, UnicodeDecodeError) as cause:
        raise DataError(f"{path} cannot be read as a vocabulary: {cause}") from cause
