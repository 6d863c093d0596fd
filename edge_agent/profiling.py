"""The offline profile (paper 000, 5.2): what each cut costs on this pair of devices, measured, one JSON file.

Each cut is measured once and written down at once, so that an interrupted profile goes on where it was.
"""

import asyncio
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
import xxhash

from edge_agent.client import TrainerClient
from edge_agent.config import EdgeConfig
from edge_agent.experiment import Experiment
from edge_agent.memory import available_bytes
from edge_agent.session import EdgeSession
from edge_agent.workers import Workers
from shared.codec import codec_by_name
from shared.model import block_state
from shared.model.measure import measure_replay, measure_stage, timed
from shared.model.stage import Stage
from shared.planning.profile import Block, Encode, Profile, profile_to_json

_log = structlog.get_logger(__name__)

ENCODE_SIZES_BYTES = (64 * 1024, 256 * 1024, 1 << 20, 4 << 20, 16 << 20)
"""Float32 sizes that the linear fits are made from."""
ENCODE_CODEC = "uniform8"
DEFAULT_MAX_STALENESS = 5
"""What paper 000 finds harmless for its models (Fig. 3, Table 4); a calibration measures it instead."""
Cut = dict[str, Any]
"""What was measured at one cut, as it stands in the file of parts."""


class Profiler:
    """Measures an experiment's model on this device and on the trainer."""

    def __init__(self, experiment: Experiment, workers: Workers, repeats: int, parts: Path) -> None:
        """repeats: steps that are timed at each cut. parts: the file that keeps what is done of an unfinished profile."""
        self._experiment = experiment
        self._workers = workers
        self._repeats = repeats
        self._parts = parts

    async def measure(self, client: TrainerClient, on_cut: Callable[[int, int], None]) -> Profile:
        """The whole profile. on_cut: told how many of how many cuts are done. Raises IsthmusError."""
        blocks = len(self._experiment.chain.blocks)
        done = self._load()
        session = await EdgeSession.open(client, self._experiment, self._workers)
        try:
            for cut in range(1, blocks + 1):
                if str(cut) not in done:
                    done[str(cut)] = await self._measure_cut(session, cut)
                    await asyncio.to_thread(self._parts.write_text, json.dumps({"of": self._identity(), "cuts": done}))
                on_cut(cut, blocks)
        finally:
            await session.close()
        encode, decode = await self._workers.codec.run(_codec_fits, self._repeats)
        state_bytes = await self._workers.compute.run(self._block_bytes)
        self._parts.unlink(missing_ok=True)
        return self._profile(done, encode, decode, state_bytes)

    async def _measure_cut(self, session: EdgeSession, cut: int) -> Cut:
        needed, available = self._needed_bytes(cut), available_bytes()
        if needed > available:
            _log.warning(
                "cut skipped: it does not fit in memory", cut=cut, needed_bytes=needed, available_bytes=available
            )
            return {"skipped": f"needs about {needed} bytes of memory, {available} are free"}
        edge = await self._workers.compute.run(self._edge_seconds, cut)
        last = cut == len(self._experiment.chain.blocks)
        cloud = [0.0] if last else await session.measure_cloud(cut, self._repeats)
        return {"edge": edge, "cloud": cloud}

    def _edge_seconds(self, cut: int) -> list[float]:
        experiment = self._experiment
        stage = Stage(experiment.chain, 0, cut, experiment.recipe, experiment.stage.device)
        if cut == len(experiment.chain.blocks):
            # Edge-only has nothing to wait for, so nothing to replay.
            return measure_stage(stage, experiment.example, input_gradient=False, repeats=self._repeats)
        return measure_replay(stage, experiment.example, repeats=self._repeats)

    def _needed_bytes(self, cut: int) -> int:
        """A bound from below: weights, gradients and moments of the edge's blocks, and what crosses them both ways."""
        chain = self._experiment.chain
        weights = sum(p.nbytes for block in chain.blocks[:cut] for p in block.named_parameters().values())
        return 4 * weights + 2 * sum(feature.bytes for feature in chain.features[: cut + 1])

    def _block_bytes(self) -> list[int]:
        """What moving each block carries: parameters, buffers and optimizer state after an update; 0 where it is static."""
        experiment = self._experiment
        stage = Stage(experiment.chain, 0, len(experiment.chain.blocks), experiment.recipe, experiment.stage.device)
        measure_stage(stage, experiment.example, input_gradient=False, repeats=1)
        return [
            0 if block_state.is_static(block) else sum(t.nbytes for t in stage.block_tensors(block.index).values())
            for block in experiment.chain.blocks
        ]

    def _profile(self, done: dict[str, Cut], encode: Cut, decode: Cut, state_bytes: list[int]) -> Profile:
        chain = self._experiment.chain
        cuts: list[Cut] = [done.get(str(cut), {}) for cut in range(len(chain.blocks) + 1)]
        learning = [any(block.trainable for block in chain.blocks[:cut]) for cut in range(len(cuts))]
        sizes = [*(feature.bytes for feature in chain.features[:-1]), 0]  # edge-only: nothing crosses
        return Profile(
            model=self._experiment.config.model.factory,
            batch_size=self._experiment.config.data.batch_size,
            blocks=tuple(Block(block.name, size) for block, size in zip(chain.blocks, state_bytes, strict=True)),
            feature_bytes=tuple(float(size) for size in sizes),
            gradient_bytes=tuple(float(size * learns) for size, learns in zip(sizes, learning, strict=True)),
            edge_seconds=tuple(_median(cut.get("edge")) for cut in cuts),
            cloud_seconds=tuple(_median(cut.get("cloud")) for cut in cuts),
            encode=Encode(encode["seconds_per_byte"], encode["seconds"]),
            min_bits=None,
            max_staleness=DEFAULT_MAX_STALENESS,
            extra={
                "decode": decode,
                "edge_seconds_spread": [_spread(cut.get("edge")) for cut in cuts],
                "cloud_seconds_spread": [_spread(cut.get("cloud")) for cut in cuts],
                "encode_spread_seconds": encode["spread_seconds"],
                "skipped": {number: cut["skipped"] for number, cut in done.items() if "skipped" in cut},
            },
        )

    def _identity(self) -> str:
        """What the parts belong to: another model, batch size or number of repeats starts anew."""
        config = self._experiment.config
        parts = (
            config.model.model_dump_json(),
            config.data.batch_size,
            self._repeats,
            config.compute.model_dump_json(),
        )
        return xxhash.xxh3_64_hexdigest(repr(parts).encode())

    def _load(self) -> dict[str, Cut]:
        try:
            kept = json.loads(self._parts.read_text())
        except (OSError, ValueError):
            return {}
        return kept["cuts"] if kept.get("of") == self._identity() else {}


async def profile_model(
    config: EdgeConfig, repeats: int, out: Path, on_cut: Callable[[int, int], None] = lambda _done, _of: None
) -> Profile:
    """Measure the profile of a configuration's model and write it to `out`. Raises IsthmusError."""
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    experiment = await asyncio.to_thread(Experiment, config)
    with Workers.started() as workers:
        async with TrainerClient(config.trainer.address, config.link, config.trainer.connect_timeout_seconds) as client:
            profiler = Profiler(experiment, workers, repeats, out.with_name(out.name + ".parts"))
            profile = await profiler.measure(client, on_cut)
    await asyncio.to_thread(out.write_text, profile_to_json(profile))
    return profile


def _codec_fits(repeats: int) -> tuple[Cut, Cut]:
    """Seconds of encoding and decoding, each as a line over the bytes of the float32 tensor (paper 000, Fig. 11)."""
    codec = codec_by_name(ENCODE_CODEC)
    encode: list[list[float]] = []
    decode: list[list[float]] = []
    for size in ENCODE_SIZES_BYTES:
        tensor = torch.randn(size // 4).relu_()
        encoded = codec.encode(tensor)
        encode.append(timed(partial(codec.encode, tensor), repeats))
        decode.append(timed(partial(codec.decode, encoded), repeats))
    return _line(encode), _line(decode)


def _line(seconds_by_size: list[list[float]]) -> Cut:
    medians = [statistics.median(seconds) for seconds in seconds_by_size]
    # Weighted so that each size counts alike: without it the largest would decide the constant too.
    slope, constant = np.polyfit(ENCODE_SIZES_BYTES, medians, 1, w=1 / np.array(medians))
    return {
        "seconds_per_byte": max(float(slope), 0.0),
        "seconds": max(float(constant), 0.0),
        "spread_seconds": [_spread(seconds) for seconds in seconds_by_size],
    }


def _median(seconds: list[float] | None) -> float | None:
    return None if seconds is None else statistics.median(seconds)


def _spread(seconds: list[float] | None) -> float | None:
    """The distance of the quartiles."""
    if seconds is None or len(seconds) < 2:
        return None
    low, _, high = statistics.quantiles(seconds, n=4)
    return high - low
