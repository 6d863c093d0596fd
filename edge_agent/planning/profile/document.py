"""The file of a profile, schema `isthmus.profile/v3`: what was measured of a model, on any workers.

Everything but the schema and the model may be left out, and is then not known. A worker has seconds of runs of blocks on whole
batches (two workers, chains) or of each block by samples (three tiers); `layers` are of a member of a group.
"""

import json
from collections.abc import Sequence
from itertools import combinations
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, FailFast, Field, JsonValue, model_validator

from edge_agent.planning.measurements import FLOAT32_BITS, MOST_BYTES, Bytes, ProfiledBlock, Seconds
from edge_agent.planning.profile.profile import DEFAULT_CODEC_FAMILY, NO_MESSAGE, MessageSeconds
from shared.bounds import MOST_BITS_PER_SECOND, MOST_WORKERS, is_worker
from shared.config import Section

SCHEMA: Literal["isthmus.profile/v3"] = "isthmus.profile/v3"
MOST_BLOCKS = 4096
MOST_RUNS = 2**20
"""Runs of blocks of one worker in the file."""
MOST_CELLS = 2**23
"""Runs of blocks of all workers in memory, measured or not."""
MOST_SAMPLES = 2**31
TIERS = 3
"""Workers of a profile by samples: a device, an edge server and a cloud."""


def _named(name: str) -> str:
    if not is_worker(name):
        raise ValueError("it must be 1 to 63 letters, digits, - and _")
    return name


def _finite(remarks: dict[str, JsonValue]) -> dict[str, JsonValue]:
    json.dumps(remarks, allow_nan=False)
    return remarks


Count = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
Rate = Annotated[float, Field(gt=0, le=MOST_BITS_PER_SECOND)]
WorkerName = Annotated[str, AfterValidator(_named)]
Line = tuple[Seconds, Seconds]
"""Seconds, and seconds for each byte or sample."""
Runs = Annotated[tuple[tuple[Count, Count, Seconds], ...], Field(max_length=MOST_RUNS), FailFast()]
"""First block, the block after the last, and seconds of the blocks between them."""
ByBlock = Annotated[tuple[Seconds, ...], Field(max_length=MOST_BLOCKS)]
LineByBlock = Annotated[tuple[Line, ...], Field(max_length=MOST_BLOCKS)]
ByCut = Annotated[tuple[Bytes | None, ...], Field(max_length=MOST_BLOCKS + 1)]
"""A number for each cut, L + 1; null where it was not measured."""
Bits = Annotated[int, Field(ge=1, le=FLOAT32_BITS)]


class SampleSeconds(Section):
    """The seconds of each block on a worker, by samples."""

    forward: LineByBlock
    backward: LineByBlock
    """Without a second forward pass."""
    update: ByBlock
    message: Line = (0.0, 0.0)
    """Seconds at this end of each message that the worker sends or receives, by bytes on the link."""


class ProfiledWorker(Section):
    """A worker, and what was timed on it."""

    name: WorkerName
    replayed: Runs = ()
    """Forward, backward and update of whole batches, with a second forward pass if the backward waits."""
    serial: Runs = ()
    """Same at K = 0, without a second forward pass; as `replayed` where it has none."""
    message: MessageSeconds = NO_MESSAGE
    """Seconds of a step for each link that the worker uses, beside `replayed` and encoding."""
    by_samples: SampleSeconds | None = None


class ProfiledLink(Section):
    """A link between two workers; null where it was not measured."""

    between: tuple[WorkerName, WorkerName]
    uplink: Rate | None = None
    """Bits per second from the first to the second."""
    downlink: Rate | None = None
    round_trip_seconds: Seconds | None = None


class CodecTimes(Section):
    """The effect of a codec on float32. Its times are by the bytes of the float32 form."""

    bits: Bits
    encode: Line
    decode: Line


class ProfiledLayer(Section):
    """A layer of a member of a group that is alone on its link."""

    name: Annotated[str, Field(min_length=1)]
    bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)]
    """Bytes of its parameters; its gradient has as many."""
    pull_seconds: Seconds
    forward_seconds: Seconds
    backward_seconds: Seconds
    push_seconds: Seconds

    @model_validator(mode="after")
    def _carries(self) -> Self:
        if self.bytes == 0 and (self.pull_seconds or self.push_seconds):
            raise ValueError("pull_seconds and push_seconds must be 0, because the layer has no bytes")
        return self


class ProfileDocument(Section):
    """A whole file."""

    schema_name: Annotated[Literal["isthmus.profile/v3"], Field(alias="schema")] = SCHEMA
    model: str
    batch_size: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | None = None
    blocks: Annotated[tuple[ProfiledBlock, ...], Field(max_length=MOST_BLOCKS)] = ()
    feature_bytes: ByCut = ()
    """Bytes of the float32 feature of a batch that crosses each cut forward."""
    gradient_bytes: ByCut = ()
    """Bytes of its error gradient."""
    sample_bytes: ByCut = ()
    """Bytes of a sample at each cut, for times by samples. The first is the input, as it travels."""
    label_bytes: Bytes | None = None
    """Bytes of a sample's labels."""
    workers: Annotated[tuple[ProfiledWorker, ...], Field(max_length=MOST_WORKERS)] = ()
    """Nearest to the samples first."""
    links: Annotated[tuple[ProfiledLink, ...], Field(max_length=MOST_WORKERS**2)] = ()
    shared_segments: Annotated[
        tuple[Annotated[tuple[Count, ...], Field(max_length=MOST_WORKERS**2)], ...], Field(max_length=MOST_WORKERS**2)
    ] = ()
    """Numbers of the links that share a segment of the network."""
    links_stay: bool = False
    """True if links stay in their places when workers change theirs, because nothing else is known of them."""
    encode: Line | None = None
    """Seconds of encoding a feature, by the bytes of its float32 form."""
    codec_family: str = DEFAULT_CODEC_FAMILY
    """Family of the codecs with which `encode` and `min_bits` were measured."""
    min_bits: Annotated[tuple[Bits | None, ...], Field(max_length=MOST_BLOCKS + 1)] | None = None
    """Fewest bits within the accuracy budget, by cut; null as a whole if nothing was calibrated."""
    max_staleness: Count | None = None
    """Largest K within the accuracy budget."""
    codecs: Annotated[dict[str, CodecTimes], Field(max_length=FLOAT32_BITS)] = Field(default={})
    """Codecs that features may have, for times by samples."""
    message_seconds: Seconds | None = None
    """Seconds that a message of a layer costs beside its bytes."""
    layers: Annotated[tuple[ProfiledLayer, ...], Field(max_length=MOST_BLOCKS)] = ()
    remarks: Annotated[dict[str, JsonValue], AfterValidator(_finite)] = Field(default={})
    """Notes on the measurement, for people. Nothing reads them."""

    @property
    def is_by_samples(self) -> bool:
        """Tell whether there are times of each block by samples."""
        return any(worker.by_samples is not None for worker in self.workers)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.workers:
            self._check_sizes()
            self._check_workers()
            self._check_links()
        if self.is_by_samples:
            self._check_samples()
        if sum(layer.bytes for layer in self.layers) > MOST_BYTES:
            raise ValueError(f"the layers have more than {MOST_BYTES} bytes")
        return self

    def _check_sizes(self) -> None:
        if self.batch_size is None or not self.blocks:
            raise ValueError(
                f"{'batch_size' if self.blocks else 'blocks'} is missing; times of workers are of blocks on a batch"
            )
        if len(self.workers) * (len(self.blocks) + 1) ** 2 > MOST_CELLS:
            raise ValueError(
                f"{len(self.blocks)} blocks on {len(self.workers)} workers have more than {MOST_CELLS} runs"
            )
        known = {"sample_bytes"} if self.is_by_samples else {"feature_bytes", "gradient_bytes"}
        for key in ("feature_bytes", "gradient_bytes", "sample_bytes"):
            if key in known:
                self._check_length(key, getattr(self, key), len(self.blocks) + 1)
            elif getattr(self, key):
                raise ValueError(f"{key} goes with other times of workers than this file has; leave it out")
        if self.min_bits is not None:
            self._check_length("min_bits", self.min_bits, len(self.blocks) + 1)

    def _check_length(self, key: str, values: Sequence[object], length: int) -> None:
        if len(values) != length:
            raise ValueError(f"{key} has {len(values)} entries; with {len(self.blocks)} blocks it must have {length}")

    def _check_workers(self) -> None:
        names = [worker.name for worker in self.workers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two workers are called {twice[0]!r}; each must have a name of its own")
        for index, worker in enumerate(self.workers):
            for key, runs in (("replayed", worker.replayed), ("serial", worker.serial)):
                seen = set()
                for first, stop, _ in runs:
                    if not first < stop <= len(self.blocks) or (first, stop) in seen:
                        raise ValueError(
                            f"workers[{index}].{key} has the blocks [{first}, {stop}) out of range or twice; there are "
                            f"{len(self.blocks)}"
                        )
                    seen.add((first, stop))

    def _check_links(self) -> None:
        names, seen = {worker.name for worker in self.workers}, set[frozenset[str]]()
        for index, link in enumerate(self.links):
            ends = frozenset(link.between)
            if len(ends) != 2 or not ends <= names:
                raise ValueError(f"links[{index}].between must be the names of two workers")
            if ends in seen:
                raise ValueError(f"links[{index}] is the second between {' and '.join(link.between)}; leave one out")
            seen.add(ends)
        for index, segment in enumerate(self.shared_segments):
            if len({*segment}) != len(segment) or any(number >= len(self.links) for number in segment):
                raise ValueError(
                    f"shared_segments[{index}] must be different numbers of links, from 0 to {len(self.links) - 1}"
                )

    def _check_samples(self) -> None:
        if len(self.workers) != TIERS:
            raise ValueError(
                f"there are {len(self.workers)} workers; three tiers are {TIERS}, the device, the edge server and the cloud"
            )
        if self.label_bytes is None or None in self.sample_bytes:
            raise ValueError("label_bytes or an entry of sample_bytes is missing; times by samples go with both")
        for index, worker in enumerate(self.workers):
            of_samples = worker.by_samples
            if of_samples is None or worker.replayed or worker.serial or worker.message != NO_MESSAGE:
                raise ValueError(f"workers[{index}] must have by_samples, as the others, and no times of whole batches")
            for key in ("forward", "backward", "update"):
                self._check_length(f"workers[{index}].by_samples.{key}", getattr(of_samples, key), len(self.blocks))
        assert self.batch_size is not None, "checked before"
        for index, block in enumerate(self.blocks):
            if block.min_samples > self.batch_size:
                raise ValueError(
                    f"blocks[{index}].min_samples is {block.min_samples}; the batch size is {self.batch_size}"
                )
            if block.parameter_bytes is None or (index == 0 and not block.reads_raw):
                raise ValueError(
                    f"blocks[{index}] must have parameter_bytes, and the first one reads_raw true, with times by samples"
                )
        known = {
            frozenset(link.between)
            for link in self.links
            if None not in (link.uplink, link.downlink, link.round_trip_seconds)
        }
        for near, far in combinations([worker.name for worker in self.workers], 2):
            if frozenset((near, far)) not in known:
                raise ValueError(
                    f"there is no measured link between {near!r} and {far!r}; every two workers must have one, over others "
                    "where need be"
                )
