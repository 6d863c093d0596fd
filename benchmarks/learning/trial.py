"""One training from its first weights to its accuracy on the test set."""

import math
import time

import torch

from benchmarks.learning.images import Images
from benchmarks.learning.plan import BATCH_SIZE, Trial
from benchmarks.learning.results import Result
from benchmarks.learning.trainees import make_trainee
from shared.codec import seed_stochastic_rounding
from shared.model.random_state import derive_seed


def run_trial(trial: Trial, train: Images, test: Images, device: torch.device) -> Result:
    """Train as `trial` says on all of `train`, then test."""
    started = time.monotonic()
    example, _ = next(train.in_order(BATCH_SIZE))
    trainee = make_trainee(trial, example, device)
    seed_stochastic_rounding(derive_seed(trial.seed, "codecs"))
    for epoch in range(trial.epochs):
        losses = trainee.train_epoch(epoch, train.shuffled(BATCH_SIZE, trial.seed, epoch))
    train_loss = sum(batch.loss for batch in losses) / len(losses)
    return Result(
        trial,
        accuracy=trainee.accuracy(test),
        test_samples=len(test),
        train_loss=train_loss if math.isfinite(train_loss) else None,
        seconds=round(time.monotonic() - started, 1),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        whole_accuracy=trainee.whole_accuracy(test),
    )
