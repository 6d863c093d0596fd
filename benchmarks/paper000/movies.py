"""MovieLens 100k: will this user like this film? Read from the three files of it that recbole 1.2.1 has in its package."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from edge_agent.data.tensors import Split, check_split
from shared.errors import DataError

_COLUMNS = {
    "inter": ["user_id:token", "item_id:token", "rating:float", "timestamp:float"],
    "user": ["user_id:token", "age:token", "gender:token", "occupation:token", "zip_code:token"],
    "item": ["item_id:token", "movie_title:token_seq", "release_year:token", "class:token_seq"],
}
_LIKED = 4.0
"""The least of five stars that says that a user likes a film."""
_TEST_SHARE = 1 / 6
"""The last of each user's ratings, as many as in paper 000's Table 1."""
_AGES = (18, 25, 35, 45, 50, 56)

History = list[tuple[float, tuple[int, int]]]
"""Films with the seconds at which they were rated, in that order."""


class Ratings:
    """Ratings as `shared.model.zoo:din` takes them; the label is 1 where a user likes a film."""

    def __init__(self, users: Tensor, candidates: Tensor, histories: Tensor, labels: Tensor) -> None:
        """Take int64 tensors: [N, 4], [N, 2], [N, length, 2] and [N]."""
        self._inputs, self._labels = (users, candidates, histories), labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], int]:
        return tuple(each[index] for each in self._inputs), int(self._labels[index])


def movielens(path: str, split: Split = "train", length: int = 20) -> Ratings:
    """Return what users said of films, with the films that they had liked before.

    path: the folder with `ml-100k.inter`, `.user` and `.item`. length: most films of a history, the last ones; item 0 is none.
    Raises DataError for a file that is missing, torn or of another form.
    """
    check_split(split)
    folder = Path(path).expanduser()
    users, items = _users(folder), _items(folder)
    by_user: dict[int, list[tuple[float, int, bool]]] = {}
    for place, (user, item, rating, time) in _rows(folder, "inter"):
        try:
            one = float(time), int(item), float(rating) >= _LIKED
            is_known = int(user) in users and one[1] in items and math.isfinite(one[0]) and math.isfinite(float(rating))
        except ValueError:
            is_known = False
        if not is_known:
            raise DataError(
                f"{place} rates item {item!r} by user {user!r} with {rating!r} at {time!r}; the first two must be numbers of "
                "the other two files, the others finite"
            )
        by_user.setdefault(int(user), []).append(one)
    rows = []
    for number, ratings in sorted(by_user.items()):
        ratings.sort()
        liked = [(at, items[film]) for at, film, is_liked in ratings if is_liked]
        border = len(ratings) - round(_TEST_SHARE * len(ratings))
        for at, film, is_liked in ratings[:border] if split == "train" else ratings[border:]:
            rows.append((users[number], items[film], _before(liked, at, length), int(is_liked)))
    if not rows:
        raise DataError(f"{folder}: ml-100k.inter has no rating for {split}; a user must have rated several films")
    of_user, of_item, histories, labels = (torch.tensor(column) for column in zip(*rows, strict=True))
    return Ratings(of_user, of_item, histories, labels)


def _before(liked: History, time: float, length: int) -> list[tuple[int, int]]:
    """Return the last films that were liked before, padded behind."""
    end = bisect_right(liked, time, key=lambda one: one[0])
    while end and liked[end - 1][0] == time:  # what was rated in the same second may be the candidate itself
        end -= 1
    films = [film for _, film in liked[max(0, end - length) : end]]
    return [*films, *[(0, 0)] * (length - len(films))]


def _users(folder: Path) -> Mapping[int, tuple[int, int, int, int]]:
    """Return user, age, gender and occupation of each user, as numbers from 1 on."""
    rows = list(_rows(folder, "user"))
    genders, occupations = (_numbers(row[place] for _, row in rows) for place in (2, 3))
    found = {}
    for place, (user, age, gender, occupation, _) in rows:
        try:
            group = 1 + bisect_right(_AGES, int(age))
            found[int(user)] = int(user), group, genders[gender], occupations[occupation]
        except ValueError as cause:
            raise DataError(f"{place} is no user: {cause}") from cause
    return found


def _items(folder: Path) -> Mapping[int, tuple[int, int]]:
    """Return number and first genre of each film, as numbers from 1 on."""
    rows = list(_rows(folder, "item"))
    genres = _numbers(row[3].partition(" ")[0] for _, row in rows)
    found = {}
    for place, row in rows:
        try:
            found[int(row[0])] = int(row[0]), genres[row[3].partition(" ")[0]]
        except ValueError as cause:
            raise DataError(f"{place} is no film: {cause}") from cause
    return found


def _numbers(words: Iterable[str]) -> Mapping[str, int]:
    return {word: number for number, word in enumerate(sorted(set(words)), start=1)}


def _rows(folder: Path, kind: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each row with its place in words."""
    place, columns = folder / f"ml-100k.{kind}", _COLUMNS[kind]
    form = f"it must have the columns {', '.join(columns)}, with tabs between them"
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        raise DataError(f"{place} cannot be read ({cause}); {form}") from cause
    if not lines or lines[0].split("\t") != columns:
        raise DataError(f"{place} is of another form; {form}")
    for number, line in enumerate(lines[1:], start=2):
        row = line.split("\t")
        if len(row) != len(columns):
            raise DataError(f"{place}, line {number} has {len(row)} columns; {form}")
        yield f"{place}, line {number}", row
