"""One training from its first weights to its accuracy on the test set."""

import math
import time
from dataclasses import replace

import torch
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.learning.images import Images
from benchmarks.learning.plan import BATCH_SIZE, NETWORKS, SUITES, Trial
from benchmarks.learning.results import Result
from shared.codec import seed_stochastic_rounding
from shared.execution.in_process_session import InProcessSession
from shared.execution.split import split_placement, split_session
from shared.model.build import build_checked_chain
from shared.model.random_state import derive_seed
from shared.registry import is_lossy


def run_trial(trial: Trial, train: Images, test: Images, device: torch.device) -> Result:
    """Train as `trial` says on all of `train`, drained at the end of every epoch as where each is evaluated, then test."""
    started = time.monotonic()
    network = NETWORKS[trial.network]
    cuts, schemes = network.cuts[trial.suite], SUITES[trial.suite].configs[trial.config]
    later = dict(zip(trial.milestones, schemes[1:], strict=False))
    example, _ = next(train.in_order(BATCH_SIZE))
    chain = build_checked_chain(network.factory, network.kwargs, trial.seed, example.cpu())
    for block in chain.blocks:  # channels last, as the images have them: a third less time in a CPU's convolutions
        convert_conv2d_weight_memory_format(block.module, torch.channels_last)
    in_process = split_session(chain, cuts, trial.recipe(), schemes[0], device)
    seed_stochastic_rounding(derive_seed(trial.seed, "codecs"))
    for epoch in range(trial.epochs):
        if epoch in later:
            in_process.change(split_placement(chain, cuts, later[epoch]))
        first_step = epoch * trial.steps_per_epoch
        batches = train.shuffled(BATCH_SIZE, trial.seed, epoch)
        losses = in_process.train(first_step, first_step + trial.steps_per_epoch, batches)
    train_loss = sum(batch.loss for batch in losses) / len(losses)
    accuracy, whole_accuracy = _accuracy(in_process, test), None
    if is_lossy(schemes[-1].codec):
        in_process.change(split_placement(chain, cuts, replace(schemes[-1], codec="fp32")))
        whole_accuracy = _accuracy(in_process, test)
    return Result(
        trial,
        accuracy=accuracy,
        test_samples=len(test),
        train_loss=train_loss if math.isfinite(train_loss) else None,
        seconds=round(time.monotonic() - started, 1),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        whole_accuracy=whole_accuracy,
    )


def _accuracy(in_process: InProcessSession, test: Images) -> float:
    return sum(in_process.evaluate(*batch).correct or 0 for batch in test.in_order(BATCH_SIZE)) / len(test)
