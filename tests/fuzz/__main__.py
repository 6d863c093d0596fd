"""`make fuzz`: placements in which labels stay, damaged files, messages on every RPC of a trainer, and trainers that lie."""

import argparse
import logging
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

import structlog
import torch
from hypothesis.errors import HypothesisWarning

from tests.fuzz.agent import fuzz_agent
from tests.fuzz.files import kinds, read_damaged
from tests.fuzz.placements import fuzz_placements
from tests.fuzz.trainer import MAX_GROWTH_BYTES, MIB, Report, fuzz_trainer
from tests.support import forked
from tests.support.running import ROOT


def table(report: Report) -> str:
    """Tabulate the ends of the calls of each method."""
    by_method: dict[str, list[str]] = defaultdict(list)
    for (method, code), count in sorted(report.ends.items()):
        by_method[method].append(f"{code} {count}")
    return "\n".join(f"{method:22} {', '.join(ends)}" for method, ends in by_method.items())


def main() -> int:
    """Raises what was found: a call that ended as it must not, or an error that is not an IsthmusError."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=400, help="of an agent whose trainer lies")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--placements", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    forked.prepare(ROOT)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    warnings.simplefilter("ignore", HypothesisWarning)  # of the length of what is drawn
    torch.set_num_threads(1)  # as the trainer, or the last bits differ
    began = time.monotonic()
    crossed = fuzz_placements(arguments.placements, arguments.seed)
    print(
        f"labels that stay       {crossed.placements} placements, in which {crossed.by_cargo.total()} other things cross"
    )
    with tempfile.TemporaryDirectory() as folder:
        every = kinds()
        for name, kind in every.items():
            count = arguments.files // len(every)
            accepted = read_damaged(kind, Path(folder), count, arguments.seed)
            print(f"{name:22} {count} files, {count - accepted} refused", flush=True)
        report = fuzz_trainer(arguments.messages, arguments.seed, Path(folder) / "checkpoints")
    lies = fuzz_agent(arguments.runs, arguments.seed)
    print(table(report))
    print(f"messages               {report.messages} in {report.ends.total()} calls")
    print(f"memory                 {report.grown_bytes / MIB:.0f} MiB more, of {MAX_GROWTH_BYTES // MIB}")
    print(f"runs of an agent       {lies.runs}, {sum(lies.told.values())} lies: {dict(lies.ends)}")
    print(f"seconds                {time.monotonic() - began:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
