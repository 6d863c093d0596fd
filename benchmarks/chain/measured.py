"""Profile that the cases plan with: the file of a chain, made of the times of runs of its blocks and of the pace of
each stage."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch

from edge_agent.experiment.experiment import Experiment
from edge_agent.planning import Layout, MeasuredLink, Plan, Profile, Question, Rates, SearchSpace, best, parse_profile
from edge_agent.planning.measurements import FLOAT32_BITS
from edge_agent.planning.profile import SCHEMA
from isthmus import EdgeConfig
from shared.config import load_config
from shared.model.features import specs_bytes
from shared.placement import Cargo, Route, document_of
from shared.registry import codec_of_bits
from shared.training import block_state
from shared.training.device import prepare_process
from shared.training.measure import measure_stage
from shared.training.stage import lone_stage
from shared.training.step_seconds import totals

END_SECONDS = 0.002
"""Processor time of a step at either end of a link, beside that of the blocks (`python -m benchmarks.edge_cpu`)."""


@dataclass(frozen=True)
class Model:
    """The trained model, and its costs."""

    flags: tuple[str, ...]
    """An agent's, of the model, its data and its recipe."""
    names: tuple[str, ...]
    """Names of the blocks."""
    block_bytes: tuple[float, ...]
    run_seconds: tuple[tuple[float | None, ...], ...]
    """[i][j]: of forward, backward and update of blocks [i, j), on a device at pace 1; None where there are none."""
    feature_bytes: tuple[float, ...]
    """By cut; of error gradients too."""
    batch_size: int

    @property
    def seconds(self) -> float:
        """Seconds of all blocks."""
        return self.run_seconds[0][-1] or 0.0


def measured_model(flags: Sequence[str], block_seconds: Sequence[float] | None = None, repeats: int = 5) -> Model:
    """The model of an agent's flags.

    block_seconds: where they are known; otherwise every run of blocks is measured here, as an agent measures a chain. One after
    the other, blocks take longer than each by itself, whose tensors stay in the cache.
    """
    prepare_process(1)
    experiment = Experiment(load_config(EdgeConfig, None, flags, environ={}))
    chain = experiment.chain
    if block_seconds is None:

        def seconds(first: int, stop: int) -> float:
            stage = lone_stage(chain, first, stop, experiment.recipe, torch.device("cpu"))
            steps = measure_stage(stage, chain.features[first], input_gradient=first > 0, repeats=repeats)
            return min(totals(steps))

        runs = run_table(len(chain.blocks), seconds)
    else:
        runs = run_table(len(block_seconds), lambda first, stop: sum(block_seconds[first:stop]))
    return Model(
        tuple(flags),
        tuple(block.name for block in chain.blocks),
        tuple(
            float(sum(tensor.nbytes for tensor in block_state.collect(block, None).values())) for block in chain.blocks
        ),
        runs,
        tuple(float(specs_bytes(specs)) for specs in chain.features),
        experiment.batch_size,
    )


def run_table(blocks: int, seconds: Callable[[int, int], float]) -> tuple[tuple[float | None, ...], ...]:
    """Return the time of each run of so many blocks, [i][j] for blocks [i, j)."""
    cuts = range(blocks + 1)
    return tuple(tuple(seconds(first, stop) if stop > first else None for stop in cuts) for first in cuts)


def chain_document(
    model: Model,
    paces: Mapping[str, float],
    link: Rates,
    encode: Mapping[str, float] | None = None,
    end_seconds: float = 0.0,
) -> dict[str, Any]:
    """The file of a model on stages that take so many times as long as one at pace 1.

    link: each one alike. encode: seconds and seconds_per_byte. end_seconds: what a stage takes besides at each of its links.
    """

    def seconds(pace: float, first: int, stop: int) -> float | None:
        run, ends = model.run_seconds[first][stop], (first > 0) + (stop < len(model.names))
        return None if run is None else pace * (run + ends * end_seconds)

    runs = list(combinations(range(len(model.names) + 1), 2))
    return {
        "schema": SCHEMA,
        "model": "benchmark",
        "batch_size": model.batch_size,
        "blocks": [{"name": name, "bytes": size} for name, size in zip(model.names, model.block_bytes, strict=True)],
        "feature_bytes": list(model.feature_bytes),
        "gradient_bytes": list(model.feature_bytes),
        "encode": [encode["seconds"], encode["seconds_per_byte"]] if encode else [0.0, 0.0],
        "workers": [
            {
                "name": name,
                "replayed": [[*run, taken] for run in runs if (taken := seconds(pace, *run)) is not None],
            }
            for name, pace in paces.items()
        ],
        "links": [
            {
                "between": list(hop),
                "uplink": link.uplink,
                "downlink": link.downlink,
                "round_trip_seconds": link.round_trip_seconds,
            }
            for hop in pairwise(paces)
        ],
        "links_stay": True,
    }


def even_cuts(blocks: int, stages: int) -> tuple[int, ...]:
    """As many blocks on each stage as on any other."""
    return tuple(blocks * stage // stages for stage in range(1, stages))


def planned(chain: Profile, bits: Sequence[int], staleness: int | None = None) -> Plan:
    """Find the best layout over the links as measured. staleness: K; without it, the slowest part alone counts."""
    return best(Question(chain, SearchSpace(tuple(bits), staleness)))


def planned_as_ftpipehd(chain: Profile) -> Layout:
    """The cuts that FTPipeHD's recursion finds: the slowest part alone counts, and a hop takes twice its feature's time.

    Devices differ by one ratio each, which a share of a core is exactly.
    """
    rates = {hop: chain.rates(*hop) for hop in pairwise(chain.names)}
    halved = {
        hop: MeasuredLink(link.uplink / 2, link.downlink / 2, link.round_trip_seconds) for hop, link in rates.items()
    }
    return planned(chain.with_links(halved), (FLOAT32_BITS,)).layout


def placement_flags(folder: Path, layout: Layout, staleness: int, like: str, gradient_codec: str = "fp32") -> list[str]:
    """An agent's flags for a layout, which stands in a file. like: a codec of the family of those of fewer bits."""
    placement = replace(layout, staleness=staleness).placement()
    codecs = {}
    for hop, bits in zip(pairwise(placement.workers), layout.bits, strict=True):
        codecs[Route(*hop, Cargo.FEATURE)] = codec_of_bits(bits, like if bits < FLOAT32_BITS else "fp32")
        codecs[Route(hop[1], hop[0], Cargo.ERROR_GRADIENT)] = gradient_codec
    path = folder / f"placement-{'-'.join(map(str, (*placement.workers, *layout.cuts, *layout.bits)))}.json"
    path.write_text(json.dumps(document_of(replace(placement, codecs=codecs))))
    return [f'placement.file="{path}"', f"deployment.staleness={staleness}", 'deployment.backward="stash"']


def parsed(document: Mapping[str, Any]) -> Profile:
    """The chain of a document."""
    return parse_profile(document, "benchmark")
