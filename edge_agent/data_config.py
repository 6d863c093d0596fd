"""The keys of the data: what is trained and evaluated on, in which order, and how batches are made."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, JsonValue, NonNegativeInt, PositiveInt, model_validator

from shared.bounds import MOST_SAMPLES_AHEAD, SAMPLES_AHEAD
from shared.config import FactoryName, Section, ShortSection

DIGITS = "edge_agent.data:digits"
"""Factory of the built-in data set."""


class Reader(NamedTuple):
    """A function that reads a file or folder."""

    factory: str
    """`package.module:function`."""
    keys: tuple[str, ...]
    """Its parameters after the path."""
    needed: tuple[str, ...] = ()
    """Parameters of them without a default."""


READERS = {
    "image_folder": Reader(
        "edge_agent.data.image_folder:image_folder", ("size", "channels", "mean", "deviation", "augment", "classes")
    ),
    "table": Reader("edge_agent.data.table:table", ("label", "columns", "classes", "delimiter"), needed=("label",)),
    "text": Reader(
        "edge_agent.data.text:text", ("column", "label", "length", "vocabulary", "words", "classes", "delimiter")
    ),
    "arrays": Reader("edge_agent.data.arrays:arrays", ("inputs", "labels")),
}
"""Readers of data by their names, as `data.train = { image_folder = "photos/train", size = 32 }` has them, none imported. A new
one is a function in a file of `edge_agent/data/`, whose first parameter is the path, and a line here."""


class DatasetConfig(ShortSection):
    short_key: ClassVar[str] = "factory"

    factory: FactoryName
    """Factory of the dataset: it returns an object with a length whose items are (input, label). A reader has a shorter form:
    `{ image_folder = "photos/train", size = 32 }`, `{ table = "readings.csv", label = "class" }`, `{ text = "reviews.csv",
    length = 64 }` or `{ arrays = "x.npz" }`."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the factory. Neither they nor the data leave this machine."""

    @model_validator(mode="before")
    @classmethod
    def _a_reader_is_a_factory(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "factory" in values:
            return values
        for name, reader in READERS.items():
            if name in values:
                given = {"path": values[name], **{key: value for key, value in values.items() if key != name}}
                if unknown := [key for key in given if key not in ("path", *reader.keys)]:
                    raise ValueError(f"{name} has no key {unknown[0]}; it has {', '.join(reader.keys)}")
                if lacking := [key for key in reader.needed if key not in given]:
                    raise ValueError(f"{name} is given without {lacking[0]}; add {lacking[0]} = …")
                return {"factory": reader.factory, "kwargs": given}
        if set(values) - {"kwargs"}:
            raise ValueError(f"it names neither a factory nor a reader; readers are {', '.join(READERS)}")
        return values


def _digits(split: str) -> DatasetConfig:
    return DatasetConfig(factory=DIGITS, kwargs={"split": split})


ORDERS = ("sampler", "sample_weights", "batch_sampler")
"""Keys of `[data]` of which each decides the order of samples."""


class DataConfig(Section):
    train: DatasetConfig = Field(default_factory=lambda: _digits("train"))
    """The samples to train on."""
    test: DatasetConfig | None = Field(default_factory=lambda: _digits("test"))
    """The samples to evaluate on. Left out while another dataset is trained on, there is no evaluation."""
    calibration: DatasetConfig | None = Field(
        default=None, examples=[{"factory": "my_data:frames", "kwargs": {"split": "calibration"}}]
    )
    """The samples that `profile --calibrate` compares copies on. They are neither trained on nor tested on, so that
    the calibration cannot flatter the test."""
    collate: FactoryName | None = Field(default=None, examples=["my_data:padded"])
    """Function that makes a batch of a list of items: it returns a pair of inputs and labels, each with the items along the
    first dimension. Every batch is made by it, also those of `test` and `calibration`. Left out, the items are stacked."""
    longest: Annotated[int, Field(ge=2)] | None = Field(default=None, examples=[128])
    """Greatest length of a batch, the second dimension of its inputs, where `collate` makes batches of several lengths. Memory
    is counted for it. Left out, all batches have one length."""
    batch_size: PositiveInt = 32
    """Samples of one step."""
    drop_last: bool = True
    """True if the samples at the end of an epoch that do not fill a batch are left out."""
    steps_per_epoch: PositiveInt | None = Field(default=None, examples=[1000])
    """Steps of an epoch where `train` is only iterated, as torch's IterableDataset, whose own length does not count. Each
    epoch begins its iterator again, as does its end within one, and `set_epoch` is called before where it has that. Who goes on
    within an epoch draws the samples of its earlier steps again, unless the set or its iterator has `state_dict` and
    `load_state_dict`, of at most 64 KiB as JSON: a copy of the set then loads it. Left out for a set with a length and items,
    of which an epoch has all."""
    shard: Literal["rank"] | None = Field(default=None, examples=["rank"])
    """Part of the data that a member of a group trains on. "rank" is for members that all have the same data: each step has
    a batch of `group.size` times `batch_size` samples, of which this device takes the part of its rank. Left out, it
    trains on all that it has."""
    sampler: FactoryName | None = Field(default=None, examples=["my_data:in_order"])
    """Function of data set, seed and epoch that returns the numbers of the samples of an epoch, in their order, as many in each
    epoch. Left out, each epoch has all samples in an order that is drawn."""
    sample_weights: FactoryName | None = Field(default=None, examples=["my_data:weights"])
    """Function of the data set that returns a weight for each sample, by which the samples of an epoch are drawn with
    replacement, as by torch's WeightedRandomSampler."""
    batch_sampler: FactoryName | None = Field(default=None, examples=["my_data:by_length"])
    """Function of data set, seed, epoch and `batch_size` that returns the batches of an epoch, each the numbers of at most
    `batch_size` samples, as many batches in each epoch: samples of one length together, for instance."""
    batch_transform: FactoryName | None = Field(default=None, examples=["my_data:mixup"])
    """Function of inputs and labels of a batch of `train` that returns both, as mixup does. It may draw from torch, numpy and
    `random`. Inputs keep their shape; labels may become others that the loss takes. Left out, batches stay as they are."""
    on_error: Literal["raise", "skip"] = "raise"
    """Reaction to a sample of `train` that cannot be read, or has another shape or type than most: the run ends, or with
    "skip" another sample stands for it, the same one whenever it comes in this epoch. Samples of `test` and `calibration` must
    all be readable."""
    max_skipped: NonNegativeInt = 100
    """Number of different samples that may be unreadable with `on_error = "skip"`; with one more the run ends. It is counted
    again in each process."""
    ahead: Annotated[int, Field(ge=0, le=MOST_SAMPLES_AHEAD)] = SAMPLES_AHEAD
    """Steps whose samples and labels may leave before K lets them begin, so that no step waits for them. This device and the
    trainers that get them keep so many more batches in memory."""
    workers: NonNegativeInt = 0
    """Processes that load and augment samples ahead, and as many again for the test set; they live as long as the run. With 0
    the agent does it itself; the samples are the same."""

    @model_validator(mode="before")
    @classmethod
    def _test_set_belongs_to_train_set(cls, values: Any) -> Any:
        if isinstance(values, dict) and "train" in values and "test" not in values:
            return {**values, "test": None}
        return values

    @model_validator(mode="after")
    def _one_decides_the_order(self) -> Self:
        given = [key for key in ORDERS if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are set, and each decides the order of samples; leave one of them")
        if self.batch_sampler is not None and self.shard is not None:
            raise ValueError(
                f'shard is "{self.shard}" and batch_sampler is set; batches of equal size alone are divided among members, so '
                "leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _only_a_function_makes_lengths(self) -> Self:
        if self.longest is not None and self.collate is None:
            raise ValueError(
                "longest is set and collate is not; without a function to make batches, all have one length"
            )
        return self
