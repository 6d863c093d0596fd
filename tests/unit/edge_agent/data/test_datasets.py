"""The built-in datasets: their real data, and the errors for wrong files."""

import gzip
import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from edge_agent.data import BatchLoader, cifar10, digits, fashion_mnist
from edge_agent.data.tensors import CropAndFlip
from shared.errors import DataError

torch.set_num_threads(1)


def everything(dataset) -> tuple[torch.Tensor, list[int]]:
    inputs, labels = zip(*(dataset[index] for index in range(len(dataset))), strict=True)
    return torch.stack(inputs), list(labels)


def test_digits_are_split_once_and_about_standardised():
    (train, train_labels), (test, test_labels) = everything(digits("train")), everything(digits("test"))
    assert train.shape == (1437, 1, 8, 8)
    assert test.shape == (360, 1, 8, 8)
    assert train.dtype == torch.float32
    both = torch.cat([train, test])
    assert both.mean().abs() < 1e-3
    assert both.std() == pytest.approx(1, abs=1e-3)
    assert set(train_labels) == set(test_labels) == set(range(10))
    assert torch.equal(everything(digits("train"))[0], train)


def test_digits_are_those_of_scikit_learn_bit_for_bit():
    bundle = load_digits()
    (train, train_labels), (test, test_labels) = (digits(split).in_memory for split in ("train", "test"))
    order = np.random.RandomState(0).permutation(len(bundle.target))
    assert torch.equal(torch.cat((train_labels, test_labels)), torch.from_numpy(bundle.target[order]))
    expected = (torch.from_numpy(bundle.images[order]).float().unsqueeze(1) - 4.884) / 6.017
    assert torch.equal(torch.cat((train, test)).view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize(
    "factory", [digits, lambda split: cifar10("x", split), lambda split: fashion_mnist("x", split)]
)
def test_an_unknown_split_is_refused(factory):
    with pytest.raises(DataError, match="split is 'valid'; it must be 'train' or 'test'"):
        factory("valid")


# CIFAR-10


@pytest.fixture(scope="module")
def cifar_archive(shared_data: Path) -> str:
    return str(shared_data / "images/cifar10_jpeg.npz")


@pytest.mark.slow
def test_the_real_cifar_is_photographs_of_ten_kinds(cifar_archive: str):
    images, labels = everything(cifar10(cifar_archive, "test", limit=10_000))
    assert images.shape == (10_000, 3, 32, 32)
    assert images.dtype == torch.float32
    assert np.bincount(labels).tolist() == [1000] * 10
    assert images.mean(dim=(0, 2, 3)).abs().max() < 0.05
    assert (images.std(dim=(0, 2, 3)) - 1).abs().max() < 0.05


def test_limit_takes_the_first_and_both_sides_of_its_bound(cifar_archive: str):
    few, more = cifar10(cifar_archive, "train", limit=2), cifar10(cifar_archive, "train", limit=3)
    assert (len(few), len(more)) == (2, 3)
    assert torch.equal(few[1][0], more[1][0])
    with pytest.raises(DataError, match="limit is 0; it must be 1 or more"):
        cifar10(cifar_archive, limit=0)


@pytest.mark.full
def test_augmentation_is_the_same_here_in_workers_and_after_a_restart(cifar_archive: str):
    dataset = cifar10(cifar_archive, "train", augment=True, limit=20)
    here = list(BatchLoader(dataset, 6, seed=1, drop_last=False, workers=0).iterate(0, 8))
    there = list(BatchLoader(dataset, 6, seed=1, drop_last=False, workers=2).iterate(3, 8))
    for batch in there:
        assert torch.equal(batch.inputs, here[batch.step].inputs)
    plain, _ = everything(cifar10(cifar_archive, "train", limit=20))
    assert not torch.equal(here[0].inputs, plain[here[0].labels])
    assert here[0].inputs.shape == (6, 3, 32, 32)


def test_augmentation_only_shifts_and_mirrors():
    pixels = torch.arange(3 * 32 * 32).reshape(3, 32, 32) % 251
    padded = torch.nn.functional.pad(pixels, (4, 4, 4, 4))
    crops = [padded[:, top : top + 32, left : left + 32] for top in range(9) for left in range(9)]
    possible = {bytes(image.byte().numpy().tobytes()) for crop in crops for image in (crop, crop.flip(-1))}
    augment = CropAndFlip(4, then=lambda image: image)
    torch.manual_seed(0)
    seen = {bytes(augment(pixels).byte().numpy().tobytes()) for _ in range(3000)}
    assert seen == possible


def write_archive(path: Path, **changes) -> Path:
    """Write an archive of two 32 x 32 images, with a test's changes in it."""
    jpegs = [jpeg(32, 32, colour) for colour in (0, 200)]
    arrays = {
        "train_bytes": np.frombuffer(b"".join(jpegs), np.uint8),
        "train_off": np.cumsum([0, *map(len, jpegs)]).astype(np.int64),
        "train_y": np.array([3, 4], np.uint8),
    }
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def jpeg(width: int, height: int, colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (colour, colour, colour)).save(buffer, "JPEG")
    return buffer.getvalue()


def test_a_small_archive_loads(tmp_path: Path):
    images, labels = everything(cifar10(str(write_archive(tmp_path / "a.npz"))))
    assert labels == [3, 4]
    assert images[1].mean() > 1 > -1 > images[0].mean()


SIZE = len(jpeg(32, 32, 0)) + len(jpeg(32, 32, 200))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"train_y": None}, "train_y is not a file in the archive; it must be an .npz with train_bytes"),
        ({"train_y": np.array([3, 10], np.uint8)}, "a train label is 10; labels must be 0 to 9"),
        ({"train_y": np.array([3], np.uint8)}, "1 labels in train_y and 3 offsets in train_off"),
        ({"train_y": np.array([3, 4])}, "has arrays of another type or shape"),
        ({"train_y": np.array([{}, {}])}, "cannot be read .*allow_pickle=False"),
        ({"train_off": np.array([-1, 9, 20])}, f"train_off must increase within 0 to {SIZE}"),
        ({"train_off": np.array([0, 9, SIZE + 1])}, f"train_off must increase within 0 to {SIZE}"),
        ({"train_off": np.array([0, 9, 9])}, "train_off must increase"),
        ({"train_off": np.array([0, 9, SIZE])}, "train image 0 is not a whole JPEG"),
        (
            {"train_bytes": np.frombuffer(jpeg(33, 32, 0) * 2, np.uint8), "train_off": np.array([0, 1, 2]) * 825},
            "train image 0 is 33 x 32 pixels; it must be 32 x 32",
        ),
    ],
)
def test_an_archive_that_is_not_right_is_named(tmp_path: Path, changes, what: str):
    if "33 x 32" in what:
        changes = {**changes, "train_off": np.array([0, 1, 2], np.int64) * len(jpeg(33, 32, 0))}
    path = write_archive(tmp_path / "a.npz", **changes)
    with pytest.raises(DataError, match=what) as caught:
        cifar10(str(path))
    assert str(path) in str(caught.value)


def test_a_truncated_or_other_file_is_no_archive(tmp_path: Path):
    path = write_archive(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"a\.npz cannot be read .*it must be an \.npz"):
        cifar10(str(path))
    path.write_bytes(b"not at all")
    with pytest.raises(DataError, match=r"a\.npz cannot be read .*it must be an \.npz"):
        cifar10(str(path))
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"single\.npz cannot be read .*it must be an \.npz"):
        cifar10(str(tmp_path / "single.npz"))


def test_without_pillow_there_is_one_sentence(tmp_path: Path, monkeypatch):
    path = write_archive(tmp_path / "a.npz")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"a\.npz: reading JPEGs needs Pillow; .*: pip install 'isthmus\[jpeg\]'"):
        cifar10(str(path))


def test_a_truncated_jpeg_is_named(tmp_path: Path):
    whole = jpeg(32, 32, 0)
    cut = whole[: len(whole) // 2]
    path = write_archive(
        tmp_path / "a.npz",
        train_bytes=np.frombuffer(whole + cut, np.uint8),
        train_off=np.array([0, len(whole), len(whole) + len(cut)]),
    )
    with pytest.raises(DataError, match="train image 1 is not a whole JPEG"):
        cifar10(str(path))


def write_binary_cifar(folder: Path, per_file: int = 2) -> np.ndarray:
    records = np.random.default_rng(0).integers(0, 256, (6 * per_file, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for name, part in zip(names, np.split(records, 6), strict=True):
        (folder / name).write_bytes(part.tobytes())
    return records


def test_the_binary_form_gives_labels_and_pixels_in_order(tmp_path: Path):
    records = write_binary_cifar(tmp_path)
    train, test = cifar10(str(tmp_path), "train"), cifar10(str(tmp_path), "test")
    assert (len(train), len(test)) == (10, 2)
    for index, dataset, place in ((9, train, 9), (1, test, 11)):
        image, label = dataset[index]
        assert label == records[place, 0]
        red = (records[place, 1:1025].reshape(32, 32) / 255 - 0.4914) / 0.2470
        assert image[0].numpy() == pytest.approx(red, abs=1e-5)
    assert len(cifar10(str(tmp_path), "train", limit=3)) == 3


@pytest.mark.parametrize("size", [0, 3072, 2 * 3073 - 1, 2 * 3073 + 1])
def test_a_truncated_binary_file_is_named(tmp_path: Path, size: int):
    write_binary_cifar(tmp_path)
    (tmp_path / "data_batch_4.bin").write_bytes(bytes(size))
    with pytest.raises(
        DataError, match=rf"data_batch_4\.bin holds {size} bytes; it must be whole records of 3073 bytes"
    ):
        cifar10(str(tmp_path))


def test_a_missing_or_wrong_binary_file_is_named(tmp_path: Path):
    write_binary_cifar(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match="a test label is 10; labels must be 0 to 9"):
        cifar10(str(tmp_path), "test")
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2\.bin does not exist; the train set is in data_batch_1\.bin, "):
        cifar10(str(tmp_path))
    with pytest.raises(DataError, match=r"nowhere does not exist; path must be the folder cifar-10-batches-bin or"):
        cifar10(str(tmp_path / "nowhere"))


# Fashion-MNIST


def idx(array: np.ndarray, type_code: int = 8) -> bytes:
    return bytes([0, 0, type_code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_fashion(folder: Path, images: bytes | None = None, labels: bytes | None = None) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    (folder / "t10k-images-idx3-ubyte").write_bytes(images or idx(pixels))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(labels or gzip.compress(idx(np.array([9, 0, 5], np.uint8))))
    return pixels


def test_idx_files_load_packed_or_not(tmp_path: Path):
    pixels = write_fashion(tmp_path)
    images, labels = everything(fashion_mnist(str(tmp_path), "test"))
    assert labels == [9, 0, 5]
    assert images.squeeze(1).numpy() == pytest.approx((pixels / 255 - 0.2860) / 0.3530, abs=1e-5)


LABELS = np.array([9, 0, 5], np.uint8)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"images": idx(np.zeros((3, 28, 28), np.uint8))[:-1]}, r"holds 2367 bytes; its header, of shape .* says 2368"),
        ({"images": idx(np.zeros((3, 28, 28), np.uint8)) + b"x"}, r"holds 2369 bytes; its header"),
        ({"images": idx(np.zeros(3, np.uint8))}, "t10k-images-idx3-ubyte is not an IDX file of unsigned bytes in 3"),
        ({"images": idx(np.zeros((3, 28, 28), np.uint8), 9)}, "is not an IDX file of unsigned bytes in 3 dimensions"),
        ({"images": idx(np.zeros((3, 28, 28), np.uint8))[:10]}, "is not an IDX file"),
        ({"images": idx(np.zeros((2, 28, 28), np.uint8))}, "2 test images but 3 labels"),
        ({"labels": gzip.compress(idx(LABELS))[:-9]}, r"t10k-labels-idx1-ubyte\.gz cannot be read"),
        ({"labels": idx(LABELS)}, r"t10k-labels-idx1-ubyte\.gz cannot be read"),
        ({"labels": gzip.compress(idx(LABELS + 1))}, "a test label is 10; labels must be 0 to 9"),
    ],
)
def test_an_idx_file_that_is_not_right_is_named(tmp_path: Path, files, what: str):
    write_fashion(tmp_path, **files)
    with pytest.raises(DataError, match=what):
        fashion_mnist(str(tmp_path), "test")


def test_a_missing_idx_file_is_named(tmp_path: Path):
    write_fashion(tmp_path)
    with pytest.raises(DataError, match=r"has neither train-images-idx3-ubyte nor train-images-idx3-ubyte\.gz"):
        fashion_mnist(str(tmp_path), "train")
