"""The offline profile (paper 000, 5.2): what each cut costs on this pair of devices, measured, one JSON file.

Each cut is measured once and written down at once, so that an interrupted profile goes on where it was.
"""

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

import structlog
import xxhash

from edge_agent.adaptation.link_probe import probe_round_trip
from edge_agent.config import EdgeConfig
from edge_agent.experiment.agent_threads import AgentThreads
from edge_agent.experiment.building import Experiment
from edge_agent.planning.measurements import FLOAT32_BITS, LinearSeconds, ProfiledBlock
from edge_agent.planning.profile import NO_OVERHEAD, Profile, pair_profile, profile_to_json
from edge_agent.profiling.block_costs import crossing_bytes, profiled_blocks, try_blocks
from edge_agent.profiling.calibrate_on import CalibrateOn
from edge_agent.profiling.calibration_copies import DeviceCopies, TrainerCopies
from edge_agent.profiling.calibration_trainings import (
    Calibration,
    CalibrationSettings,
    Trainings,
    bit_widths,
    wanted_cuts,
)
from edge_agent.profiling.codec_times import Fit, codec_fits, narrow_codec, spread
from edge_agent.profiling.events import PieceMeasured
from edge_agent.profiling.lines import line_through
from edge_agent.profiling.memory import available_bytes, needed_bytes
from edge_agent.profiling.profile_parts import MeasuredCut, Measurements, PartFile
from edge_agent.profiling.trial import busy_seconds, turn_seconds
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.opening import open_session
from shared.checkpoint import LocalFiles
from shared.client.credentials import trainer_access
from shared.client.retry import Retry
from shared.client.trainer import TrainerClient
from shared.events import Emit, ignore
from shared.model.features import specs_bytes
from shared.registry import codec_bits, codec_spec
from shared.training.device import prepare_process
from shared.training.measure import measure_stage
from shared.training.policies import Replay
from shared.training.stage import Stage, lone_stage
from shared.training.step_seconds import totals

_log = structlog.get_logger(__name__)

DEFAULT_MAX_STALENESS = 5
"""Largest staleness that paper 000 finds harmless for its models (Fig. 3, Table 4); a calibration finds it out
instead."""
MOST_TRIALS = 3
"""Cuts at which the overhead is measured."""
TRIAL_STEPS = 3
"""Real steps with late gradients for each repeat: they come in bursts."""


class Profiler:
    """Measures an experiment's model on this device and on the trainer."""

    def __init__(
        self, experiment: Experiment, threads: AgentThreads, repeats: int, parts: PartFile[Measurements]
    ) -> None:
        """repeats: steps that are timed at each cut. parts: keeps what is done of an unfinished profile."""
        self._experiment = experiment
        self._threads = threads
        self._repeats = repeats
        self._parts = parts
        self._narrow_codec = narrow_codec(experiment.config)

    async def measure(self, client: TrainerClient, emit: Emit) -> Profile:
        """The whole profile. Raises IsthmusError."""
        blocks = len(self._experiment.chain.blocks)
        parts = await asyncio.to_thread(self._parts.load, self._identity())
        retry = Retry(0)  # a lost trainer ends the measurement, which goes on when asked again
        trainer = self._experiment.config.only_trainer.name
        session = await open_session({trainer: client}, self._experiment, self._threads, retry)
        try:
            async with session.keep_alive():
                for cut in range(1, blocks + 1):
                    if str(cut) not in parts.cuts:
                        measured = {str(cut): await self._measure_cut(session, cut)}
                        parts = parts.model_copy(update={"cuts": parts.cuts | measured})
                        await asyncio.to_thread(self._parts.save, parts)
                    emit(PieceMeasured(cut, blocks))
        finally:
            await session.abandon()  # whatever came of it: a trainer that does not hear of it frees the session later
        done = {cut: parts.cuts[str(cut)] for cut in range(1, blocks + 1)}
        encode, decode = await self._threads.codec.run(
            codec_fits, self._narrow_codec, self._repeats, self._experiment.config
        )
        overheads = await self._overheads(client, done, encode)
        tried = await self._threads.compute.run(try_blocks, self._experiment)
        round_trip_seconds = await probe_round_trip(self._experiment.config)
        return self._profile(
            done, encode, decode, profiled_blocks(self._experiment.chain, tried), overheads, round_trip_seconds
        )

    async def _measure_cut(self, session: OpenSession, cut: int) -> MeasuredCut:
        if cut < self._experiment.chain.first_boundary:
            _log.warning("cut skipped: it would send raw samples", cut=cut)
            return MeasuredCut(skipped="would send raw samples")
        if self._experiment.chain.parts_tied(0, cut):
            return MeasuredCut(skipped="would part blocks that use a weight together")
        needed, available = needed_bytes(self._experiment.chain, 0, cut), available_bytes()
        if needed > available:
            _log.warning(
                "cut skipped: it does not fit in memory", cut=cut, needed_bytes=needed, available_bytes=available
            )
            return MeasuredCut(skipped=f"needs about {needed} bytes of memory, {available} are free")
        edge = await self._threads.compute.run(self._edge_seconds, cut)
        serial = await self._threads.compute.run(self._serial_seconds, cut)
        last = cut == len(self._experiment.chain.blocks)
        cloud = [0.0] if last else await self._trainer_seconds(session, cut)
        return MeasuredCut(edge=tuple(edge), serial=tuple(serial), cloud=tuple(cloud))

    async def _trainer_seconds(self, session: OpenSession, cut: int) -> list[float]:
        """Seconds of steps of the blocks from `cut` on."""
        (trainer,) = session.members.values()
        blocks = len(self._experiment.chain.blocks)
        return totals(await trainer.client.measure_stage(trainer.session_id, cut, blocks, self._repeats))

    def _edge_seconds(self, cut: int) -> list[float]:
        inputs = self._experiment.chain.features[0]
        return totals(
            measure_stage(self._stage(cut), inputs, input_gradient=False, repeats=self._repeats, policy=Replay)
        )

    def _serial_seconds(self, cut: int) -> list[float]:
        """T1 at K = 0: the graph of the one forward is kept."""
        inputs = self._experiment.chain.features[0]
        return totals(measure_stage(self._stage(cut), inputs, input_gradient=False, repeats=self._repeats))

    def _stage(self, cut: int) -> Stage:
        experiment = self._experiment
        return lone_stage(experiment.chain, 0, cut, experiment.recipe, experiment.held.device)

    async def _overheads(
        self, client: TrainerClient, done: dict[int, MeasuredCut], encode: Fit
    ) -> tuple[LinearSeconds, float]:
        """Measure the edge's time in a real step beyond T1: with late gradients, and at K = 0, where it idles in
        between.

        From the last cut that is split, where the edge computes most, up to the first at which it does not bound a step.
        Each with and without compression: what its bytes cost, a cut cannot tell from what else is different there.
        At K = 0 at the first cut, where the edge computes least: the pace of a device drifts, and of little it is little.
        None where nothing learns there.
        """
        blocks = self._experiment.chain.blocks
        edge = {cut: done[cut].edge for cut in range(1, len(blocks))}
        means = {cut: statistics.fmean(seconds) for cut, seconds in edge.items() if seconds is not None}
        cuts = [cut for cut in means if self._experiment.chain.gradients_return(cut)]
        if not cuts:
            return NO_OVERHEAD, 0.0
        config, first, last = self._experiment.config, cuts[0], cuts[-1]
        turn = await turn_seconds(client, config, first, self._threads, self._repeats)
        points: list[tuple[float, float]] = []
        for cut in cuts[: -1 - MOST_TRIALS : -1]:
            size = specs_bytes(self._experiment.chain.features[cut])
            encode_seconds = encode["seconds_per_byte"] * size + encode["seconds"]
            found = 0
            for codec, seconds in (("fp32", means[cut]), (self._narrow_codec, means[cut] + encode_seconds)):
                busy = await busy_seconds(client, config, cut, codec, self._threads, TRIAL_STEPS * self._repeats)
                if busy is not None:
                    carried_bytes = size * (codec_bits(codec) / FLOAT32_BITS + 1)
                    points.append((carried_bytes, max(busy - seconds, 0.0)))
                    found += 1
            if not found:
                break
        if not points:
            _log.warning("no overhead measured: the edge is not what bounds a step at this cut", cut=last)
        serial = done[first].serial
        assert serial is not None, "measured with T1"
        return line_through(points), max(turn - statistics.fmean(serial), 0.0)

    def _profile(
        self,
        done: dict[int, MeasuredCut],
        encode: Fit,
        decode: Fit,
        blocks: tuple[ProfiledBlock, ...],
        overheads: tuple[LinearSeconds, float],
        round_trip_seconds: float | None,
    ) -> Profile:
        chain = self._experiment.chain
        cuts = [MeasuredCut(skipped="the raw input would leave the edge"), *done.values()]
        feature_bytes, gradient_bytes = crossing_bytes(chain)
        return pair_profile(
            model=self._experiment.config.model.factory,
            batch_size=self._experiment.config.data.batch_size,
            blocks=blocks,
            feature_bytes=tuple(feature_bytes),
            gradient_bytes=tuple(gradient_bytes),
            edge_seconds=tuple(_mean(cut.edge) for cut in cuts),
            cloud_seconds=tuple(_mean(cut.cloud) for cut in cuts),
            encode=LinearSeconds(encode["seconds_per_byte"], encode["seconds"]),
            min_bits=None,
            max_staleness=DEFAULT_MAX_STALENESS,
            codec_family=codec_spec(self._narrow_codec).family,
            serial_edge_seconds=tuple(_mean(cut.serial) for cut in cuts),
            overhead=overheads[0],
            serial_overhead_seconds=overheads[1],
            round_trip_seconds=round_trip_seconds,
            remarks={
                "decode": decode,
                "edge_seconds_spread": [spread(cut.edge) for cut in cuts],
                "cloud_seconds_spread": [spread(cut.cloud) for cut in cuts],
                "encode_spread_seconds": encode["spread_seconds"],
                "skipped": {str(number): cut.skipped for number, cut in done.items() if cut.skipped is not None},
            },
        )

    def _identity(self) -> str:
        """Name the experiment that the parts belong to: parts of another model, batch size, first cut or number of
        repeats do not count."""
        config = self._experiment.config
        parts = (
            config.model.model_dump_json(),
            config.data.batch_size,
            self._experiment.chain.first_boundary,
            self._repeats,
            config.compute.model_dump_json(),
        )
        return xxhash.xxh3_64_hexdigest(repr(parts).encode())


async def profile_model(
    config: EdgeConfig,
    repeats: int,
    out: Path,
    emit: Emit = ignore,
    calibration: CalibrationSettings | None = None,
) -> Profile:
    """Measure the profile of a configuration's model, calibrate it where that is asked for, and write it to `out`.

    Raises IsthmusError, for what cannot be calibrated before anything is measured.
    """
    prepare_process(config.compute.threads)
    experiment = await asyncio.to_thread(Experiment, config)
    parts = PartFile(out.with_name(out.name + ".parts"), Measurements)
    trainings = PartFile(out.with_name(out.name + ".trainings"), Trainings)
    with AgentThreads.started() as threads:
        here = None
        if calibration is not None:
            wanted_cuts(experiment, calibration)
            bit_widths(calibration)
            here = DeviceCopies(experiment, threads) if calibration.on is CalibrateOn.DEVICE else None
        async with TrainerClient(
            config.only_trainer, config.link, access=trainer_access(config.only_trainer, config.tls)
        ) as client:
            profile = await Profiler(experiment, threads, repeats, parts).measure(client, emit)
            if calibration is not None:
                copies = here or TrainerCopies(experiment, client)
                calibrating = Calibration(experiment, calibration, copies, trainings, emit)
                profile = await calibrating.of(profile)
    await asyncio.to_thread(LocalFiles(out.parent).write, out.name, profile_to_json(profile).encode())
    await asyncio.to_thread(parts.remove)
    await asyncio.to_thread(trainings.remove)
    return profile


def _mean(seconds: Sequence[float] | None) -> float | None:
    """Not the median: on a device that is held to a share of its time some repeats wait for it, and all of them count."""
    return None if seconds is None else statistics.fmean(seconds)
