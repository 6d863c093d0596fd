"""The best weights of a run, as its evaluations judge them: brought home at the evaluation that finds them.

The rows of the history say which step's are the best, and the session's folder keeps the weights of that step, and of those
that were the best at each checkpoint to which the run could go back.
"""

from collections.abc import Sequence
from functools import partial

import safetensors.torch
import structlog
from torch import Tensor, nn

from edge_agent.improvement_config import FollowedFigure
from edge_agent.sessions.open_session import OpenSession
from edge_agent.sessions.stored_session import StoredSession
from edge_agent.training.history import HistoryRow
from edge_agent.training.improvement import best_step
from edge_agent.training.statistics import Statistics
from shared.errors import StorageError
from shared.training.state_file import serialize

_log = structlog.get_logger(__name__)


class BestWeights:
    """Keeps the best weights of one session as it goes. Used on the event loop."""

    def __init__(self, session: OpenSession, statistics: Statistics) -> None:
        """statistics: of the run, with its history."""
        self._session = session
        self._statistics = statistics
        self._figure = session.experiment.config.training.keep_best
        self._kept_step: int | None = None
        """Step whose weights were kept last, since the run has gone back."""

    async def go_back(self, step: int) -> None:
        """Keep the weights of the steps after this one again, which come once more."""
        self._kept_step = None
        if self._figure is not None:
            await self._session.threads.disk.run(self._session.stored.forget_best, step)

    def is_due(self, step: int) -> bool:
        """Tell whether the evaluation at this boundary is the best, and its weights are not kept. Those of the last step come
        home anyway."""
        if self._figure is None or step in (self._kept_step, self._session.experiment.steps):
            return False
        return best_step(self._statistics.history, self._figure) == step

    async def keep(self, step: int) -> None:
        """Bring the weights of this boundary home, and keep them.

        Raises the IsthmusError of a failed call. Weights for which the disk has no room are not kept, and a warning says so.
        """
        assert self._figure is not None, "it is due"
        session, rows = self._session, list(self._statistics.history)
        experiment, threads = session.experiment, session.threads
        await session.collect()
        weights = await threads.compute.run(lambda: serialize(experiment.chain.module.state_dict()))
        best_at = partial(best_step, rows, self._figure)
        try:
            await threads.disk.run(session.stored.keep_best, step, weights, best_at)
            _log.info("these weights are the best so far", step=step)
        except StorageError as failure:
            _log.warning("the best weights so far are not kept", step=step, reason=str(failure))
        self._kept_step = step


def best_of(
    rows: Sequence[HistoryRow], figure: FollowedFigure | None, stored: StoredSession, module: nn.Module, steps: int
) -> dict[str, Tensor] | None:
    """Return the state dict of the best evaluation; None where none is followed, or none was good. Blocks.

    module: with the weights after `steps`, on the host. A warning says that none was good, or that the best are not there.
    """
    if figure is None:
        return None
    if (step := best_step(rows, figure)) is None:
        _log.warning(
            "no weights are kept as the best, because no evaluation has a number to go by", metric=figure.metric
        )
        return None
    if step == steps:
        return {name: value.detach().clone() for name, value in module.state_dict().items()}
    try:
        return safetensors.torch.load(stored.best(step))
    except StorageError as failure:
        _log.warning("the best weights are not there", step=step, reason=str(failure))
        return None
