"""The readers of data that one line of a configuration names, each against a plain one."""

import csv
import inspect
import random
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from edge_agent.data import BatchLoader, evaluation_batches, first_batch, rows
from edge_agent.data.named import check_alike, load_dataset
from edge_agent.data.skipping import Skipping
from edge_agent.data_config import READERS
from isthmus import EdgeConfig
from shared.errors import DataError
from shared.factory import load_factory
from tests.support.torchvisions import torchvision_imported

torch.set_num_threads(1)


def read(**keys):
    """The data set of a line of a configuration."""
    config = EdgeConfig.model_validate({"data": {"train": keys}}).data.train
    return load_dataset(config.factory, config.kwargs)


def everything(dataset):
    ((inputs, labels),) = [(batch.inputs, batch.labels) for batch in evaluation_batches(dataset, len(dataset))]
    return inputs, labels


def refused(sentence, **keys):
    with pytest.raises(DataError, match=f"^{sentence}$"):
        list(evaluation_batches(read(**keys), 4))


def test_the_keys_of_each_reader_are_its_parameters():
    for name, reader in READERS.items():
        first, *others = inspect.signature(load_factory(reader.factory)).parameters
        assert (first, tuple(others)) == ("path", reader.keys), name


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"image_folder": "x", "sise": 3}, "image_folder has no key sise; it has size, channels"),
        (
            {"image_foldr": "x"},
            "it names neither a factory nor a reader; readers are image_folder, table, text, arrays",
        ),
        ({"table": "x", "kwargs": {}}, "table has no key kwargs; it has label, columns, classes, delimiter"),
    ],
)
def test_a_key_that_no_reader_has_is_one_sentence(keys, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        EdgeConfig.model_validate({"data": {"train": keys}})


@pytest.fixture
def photos(tmp_path):
    chance = np.random.default_rng(0)
    for number, name in enumerate(("bird", "cat", "cat", "dog", "dog")):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (40, 30, 3), np.uint8)).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_a_folder_of_pictures_is_that_of_torchvision(photos):
    torchvision_imported()
    from torchvision import datasets, transforms

    plain = datasets.ImageFolder(photos, transforms.Compose([transforms.Resize((16, 20)), transforms.ToTensor()]))
    ours = read(image_folder=str(photos), size=[16, 20])
    assert ours.classes == plain.classes
    for index in range(5):
        assert torch.equal(ours[index][0], plain[index][0])
        assert ours[index][1] == plain[index][1]
    grey = transforms.Compose([transforms.Grayscale(), transforms.ToTensor()])
    plain = datasets.ImageFolder(photos, grey)
    assert torch.equal(read(image_folder=str(photos), channels=1)[3][0], plain[3][0])
    mean, deviation = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    plain = datasets.ImageFolder(
        photos, transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, deviation)])
    )
    ours = read(image_folder=str(photos), mean=list(mean), deviation=list(deviation))
    torch.testing.assert_close(ours[2][0], plain[2][0])


def test_pictures_that_are_no_samples_are_named(photos):
    where = re.escape(str(photos))
    Image.new("RGB", (31, 40)).save(photos / "cat" / "3.png")
    mixed = f"{where}/cat/3.png is 31 x 40 pixels, and {where}/bird/0.png 30 x 40; give size"
    refused(f"sample 3 of ImageFolder cannot be read: {mixed}", image_folder=str(photos))
    (photos / "cat" / "3.png").write_bytes((photos / "cat" / "2.png").read_bytes()[:100])
    refused(
        f"sample 3 of ImageFolder cannot be read: {where}/cat/3.png is no whole picture: .*",
        image_folder=str(photos),
        size=8,
    )
    skipping = Skipping(0, 1)
    assert first_batch(read(image_folder=str(photos), size=8), 6, None, skipping).samples == 6
    refused("size is 0; it must be a number of pixels, or height and width", image_folder=str(photos), size=0)
    (photos / "fish").mkdir()
    refused(f"{where}/fish has no picture; each class needs one at least", image_folder=str(photos))
    refused(f"{where}/fish has no folder; it must have one for each class", image_folder=str(photos / "fish"))
    refused(f"{where}/none is no folder; .*", image_folder=str(photos / "none"))


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_grey_of_sixteen_bits_keeps_its_shades(tmp_path, ending):
    shades = np.random.default_rng(0).integers(0, 65536, (8, 9), np.uint16)
    shades[0, :6] = 0, 128, 129, 385, 386, 65535
    (tmp_path / "xray").mkdir()
    file = tmp_path / "xray" / f"0.{ending}"
    Image.fromarray(shades).save(file)
    expected = torch.from_numpy(np.rint(shades / 257)).float() / 255
    assert torch.equal(read(image_folder=str(tmp_path), channels=1)[0][0], expected[None])
    assert torch.equal(read(image_folder=str(tmp_path))[0][0], expected.expand(3, 8, 9))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_a_picture_without_a_white_of_its_own_is_named(tmp_path, kind):
    (tmp_path / "xray").mkdir()
    file = tmp_path / "xray" / "0.tif"
    Image.fromarray(np.full((8, 9), 1000, kind)).save(file)
    refused(
        f"sample 0 of ImageFolder cannot be read: {re.escape(str(file))} has numbers of 32 bits; 8 or 16 can be read",
        image_folder=str(tmp_path),
    )


def write_table(path, rows, header=("height", "kind", "weight")):
    with path.open("w", newline="") as lines:
        csv.writer(lines).writerows([header, *rows])
    return str(path)


@pytest.fixture(params=["row by row", "at once"])
def by_rows(request, monkeypatch):
    """Reading of CSV with pyarrow, and without."""
    if request.param == "at once":
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setattr(rows, "find_spec", lambda _name: None)


@pytest.mark.usefixtures("by_rows")
def test_a_table_is_that_of_a_plain_reader(tmp_path):
    chance = random.Random(0)
    kinds = ["oak", "elm", "fir, red"]
    trees = [(chance.uniform(-1e6, 1e6), chance.choice(kinds), chance.randrange(99)) for _ in range(40_000)]
    path = write_table(tmp_path / "trees.csv", trees)
    inputs, labels = everything(read(table=path, label="kind"))
    assert torch.equal(inputs, torch.tensor([(height, weight) for height, _, weight in trees]))
    assert labels.tolist() == [sorted(kinds).index(kind) for _, kind, _ in trees]
    inputs, labels = everything(read(table=path, label="weight", columns=["height"]))
    assert (inputs.shape, labels.tolist()) == ((40_000, 1), [weight for _, _, weight in trees])
    _, labels = everything(read(table=path, label=["weight", "height"], columns=["height"]))
    assert torch.equal(labels, torch.tensor([(weight, height) for height, _, weight in trees]))
    _, labels = everything(read(table=path, label="height", columns=["weight"]))
    assert torch.equal(labels, torch.tensor([height for height, _, _ in trees]))


def test_a_table_is_that_of_pandas_and_in_parquet_the_same(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    trees = [(place / 7, "oak" if place % 3 else "elm", place % 5) for place in range(100)]
    path, same = write_table(tmp_path / "trees.csv", trees), tmp_path / "trees.parquet"
    frame = pandas.read_csv(path)
    frame.to_parquet(same)
    for label in ("kind", "height"):
        inputs, labels = everything(read(table=path, label=label, columns=["weight"]))
        assert np.array_equal(inputs.numpy(), frame[["weight"]].to_numpy(np.float32))
        found = everything(read(table=str(same), label=label, columns=["weight"]))
        assert torch.equal(found[0], inputs)
        assert torch.equal(found[1], labels)
    frame.loc[3, "weight"] = None
    frame.to_parquet(same)
    refused(
        f"{re.escape(str(same))}: row 5: column 'weight' is empty",
        table=str(same),
        label="kind",
    )
    same.write_bytes(b"PAR1")
    refused(f"{re.escape(str(same))} is no Parquet file: .*", table=str(same), label="kind")


@pytest.mark.usefixtures("by_rows")
def test_rows_that_are_no_samples_are_named_by_file_and_row(tmp_path):
    path = tmp_path / "trees.csv"
    where = re.escape(str(path))
    good = [(1.5, "oak", 2), (2.5, "elm", 3)]
    for row, why in [
        ((1.5, "oak"), "it has 2 cells, and the first row names 3 columns"),
        (("tall", "oak", 2), "column 'height' is 'tall', which is no finite number"),
        ((float("nan"), "oak", 2), "column 'height' is 'nan', which is no finite number"),
        (("", "oak", 2), "column 'height' is empty"),
        ((1.5, "", 2), "column 'kind' is empty"),
    ]:
        write_table(path, [*good, row, *good])
        refused(f"{where}: row 4: {why}", table=str(path), label="kind")
        dataset = read(table=str(path), label="kind")
        loader = BatchLoader(dataset, 5, 0, True, 0, skipping=Skipping(0, 1))
        assert set(torch.cat([batch.inputs for batch in loader.iterate(0, 4)])[:, 0].tolist()) == {1.5, 2.5}
    write_table(path, good)
    none = f"{where}: row 3: column 'kind' is 'elm', which is none of oak"
    refused(none, table=str(path), label="kind", classes=["oak"])
    columns = "'height', 'kind', 'weight'"
    refused(f"{where} has no column 'species'; it has {columns}", table=str(path), label="species")
    for near in ("Kind", " kind", "knd"):
        hint = r"; did you mean 'kind'\?"
        refused(f"{where} has no column '{near}'; it has {columns}{hint}", table=str(path), label=near)
    refused(f"{where} has no row beside its first", table=write_table(path, []), label="kind")
    path.write_text("x, y\n1,2\n")
    refused(rf"{where} has no column 'y'; it has 'x', ' y'; did you mean ' y'\?", table=str(path), label="y")
    path.write_bytes(b"height,kind\n1,\xff\n")
    refused(f"{where} cannot be read as text in UTF-8: .*", table=str(path), label="kind")
    refused(f"{where}x is no file; it must be a table in CSV or Parquet", table=f"{path}x", label="kind")


@pytest.mark.usefixtures("by_rows")
@pytest.mark.parametrize("cell", ["nan", "inf", "1e40"])
@pytest.mark.parametrize(("labels", "kind"), [(("0", "2"), torch.int64), (("0.5", "2.5"), torch.float32)])
def test_a_label_that_is_no_finite_number_is_a_broken_row_and_changes_no_other(tmp_path, cell, labels, kind):
    path = write_table(tmp_path / "a.csv", [(place, label) for place, label in enumerate((*labels, cell))], ("x", "y"))
    refused(f"{re.escape(path)}: row 4: column 'y' is '{cell}', which is no finite number", table=path, label="y")
    batch = first_batch(read(table=path, label="y"), 2, None, Skipping(0, 1))
    assert (batch.labels.dtype, batch.labels.tolist()) == (kind, [float(label) for label in labels])


@pytest.mark.usefixtures("by_rows")
def test_empty_lines_at_the_end_are_no_rows_and_one_between_rows_is_broken(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,0\n2,1\n\n\n")
    assert len(read(table=str(path), label="y")) == 2
    path.write_text("x,y\n1,0\n\n2,1\n\n")
    refused(f"{re.escape(str(path))}: row 3: it has 0 cells, .*", table=str(path), label="y")


@pytest.mark.usefixtures("by_rows")
def test_what_has_underscores_is_a_name_and_no_number(tmp_path):
    path = write_table(tmp_path / "a.csv", [(1, "1_2"), (2, "12"), (3, "1_2")], ("x", "y"))
    dataset = read(table=path, label="y")
    assert (dataset.classes, everything(dataset)[1].tolist()) == (["12", "1_2"], [1, 0, 1])
    refused(
        f"{re.escape(path)}: row 2: column 'y' is '1_2', which is no finite number",
        table=path,
        label="x",
        columns=["y"],
    )


@pytest.mark.usefixtures("by_rows")
def test_classes_that_a_configuration_gives_as_numbers_are_names(tmp_path, photos):
    path = write_table(tmp_path / "a.csv", [(1, "2"), (2, "0")], ("x", "y"))
    dataset = read(table=path, label="y", classes=[2, 1, 0])
    assert (dataset.classes, everything(dataset)[1].tolist()) == (["2", "1", "0"], [0, 2])
    none = f"{re.escape(path)}: row 3: column 'y' is '0', which is none of 2, 1"
    refused(none, table=path, label="y", classes=[2, 1])
    (photos / "cat").rename(photos / "7")
    assert read(image_folder=str(photos), classes=[7]).classes == ["7"]


def test_labels_in_parquet_of_another_type_are_names_and_nan_is_a_broken_row(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    days = [pandas.Timestamp("2020-01-02").date(), pandas.Timestamp("2020-01-01").date()]
    pandas.DataFrame({"x": [1.0, 2.0], "y": days}).to_parquet(path)
    dataset = read(table=str(path), label="y")
    assert (dataset.classes, everything(dataset)[1].tolist()) == (["2020-01-01", "2020-01-02"], [1, 0])
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": [1.0, 2.0, 3.0], "y": [0.0, float("nan"), 1.0]}), path)
    why = "row 3: column 'y' is 'nan', which is no finite number"
    refused(f"{re.escape(str(path))}: {why}", table=str(path), label="y")


@pytest.mark.usefixtures("by_rows")
def test_the_column_that_pandas_writes_for_its_index_is_named(tmp_path):
    path = write_table(tmp_path / "a.csv", [(0, 1.5, "oak")], header=("", "height", "kind"))
    where = f"{re.escape(path)}: its first row must name all columns"
    refused(
        rf"{where}; to_csv\(path, index=False\) of pandas writes no index, which has no name", table=path, label="kind"
    )
    refused(where, table=write_table(tmp_path / "a.csv", [(1.5, "oak")], header=("height", "")), label="height")


def test_other_classes_in_the_test_set_are_refused(tmp_path):
    train = read(table=write_table(tmp_path / "a.csv", [(1, "elm", 2), (1, "oak", 2)]), label="kind")
    few = write_table(tmp_path / "b.csv", [(1, "oak", 2)])
    with pytest.raises(
        DataError, match=r"^data.train and data.test have other classes, 'elm' and 'oak' as number 0; give both"
    ):
        check_alike(train, read(table=few, label="kind"))
    check_alike(train, read(table=few, label="kind", classes=["elm", "oak"]))


@pytest.mark.usefixtures("by_rows")
def test_texts_are_the_numbers_of_their_words(tmp_path):
    reviews = [("Good, very good!", "pos"), ("bad", "neg"), ("", "neg"), ("A bad one", "pos")]
    path = write_table(tmp_path / "r.csv", reviews, header=("text", "label"))
    known = ["bad", "good", "!", ",", "a", "one", "very"]  # by frequency, then by alphabet
    refused(f"{re.escape(path)}: row 4: column 'text' is empty", text=path, length=4)
    refused("length is '64'; it must be a whole number of 1 or more", text=path, length="64")
    refused("words is 0; it must be a whole number of 1 or more", text=path, words=0)
    write_table(tmp_path / "r.csv", [row for row in reviews if row[0]], header=("text", "label"))
    dataset = read(text=path, length=4)
    assert dataset.vocabulary == known
    number = {word: place + 2 for place, word in enumerate(known)}
    inputs, labels = everything(dataset)
    assert inputs.tolist() == [
        [number[word] for word in ("good", ",", "very", "good")],
        [number["bad"], 0, 0, 0],
        [number["a"], number["bad"], number["one"], 0],
    ]
    assert labels.tolist() == [1, 0, 1]
    assert nn.Embedding(len(known) + 2, 3)(inputs).shape == (3, 4, 3)
    (tmp_path / "words.txt").write_text("bad\ngood\n")
    inputs, _ = everything(read(text=path, length=2, vocabulary=str(tmp_path / "words.txt")))
    assert inputs.tolist() == [[3, 1], [2, 0], [1, 2]]
    assert everything(read(text=path, length=2, vocabulary=path, words=1))[0].tolist() == [[1, 1], [2, 0], [1, 2]]
    with pytest.raises(DataError, match="have other vocabulary"):
        check_alike(dataset, read(text=path, vocabulary=str(tmp_path / "words.txt")))


def test_arrays_are_those_of_the_file(tmp_path):
    path, chance = str(tmp_path / "x.npz"), np.random.default_rng(0)
    kept = {
        "inputs": chance.random((5, 3)),
        "more": chance.integers(0, 9, (5, 2)),
        "labels": np.arange(5),
        "few": np.arange(4),
    }
    np.savez(path, **kept)
    inputs, labels = everything(read(arrays=path))
    assert torch.equal(inputs, torch.from_numpy(kept["inputs"]).float())
    assert labels.tolist() == [0, 1, 2, 3, 4]
    inputs, labels = everything(read(arrays=path, inputs=["inputs", "more"], labels=["labels", "more"]))
    assert torch.equal(inputs["more"], torch.from_numpy(kept["more"]))
    assert torch.equal(labels[1], torch.from_numpy(kept["more"]))
    where = re.escape(path)
    refused(f"{where} has no array 'images'; it has inputs, more, labels, few", arrays=path, inputs="images")
    refused(
        f"{where}: 'inputs' has 5, 'few' has 4 samples; all arrays need as many, and some", arrays=path, labels="few"
    )
    np.savez(path, inputs=np.array([{}]), labels=np.arange(1))
    refused(f"{where} cannot be read as an .npz: .*", arrays=path)
    refused(f"{where}x cannot be read as an .npz: .*", arrays=f"{path}x")


def test_one_array_is_no_archive_of_arrays(tmp_path):
    path = str(tmp_path / "one.npy")
    np.save(path, np.arange(3))
    refused(f"{re.escape(path)} is one array; it must be an .npz, as np.savez writes it", arrays=path)


def test_arrays_of_another_byte_order_are_converted(tmp_path):
    path, numbers = str(tmp_path / "x.npz"), np.random.default_rng(0).random((5, 3))
    np.savez(path, inputs=numbers.astype(">f8"), labels=np.arange(5).astype(">i4"))
    inputs, labels = everything(read(arrays=path))
    assert torch.equal(inputs, torch.from_numpy(numbers).float())
    assert labels.tolist() == [0, 1, 2, 3, 4]
