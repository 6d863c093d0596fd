"""A run whose agent moves its cut and is stopped again and again, and goes on each time."""

from collections.abc import Mapping
from itertools import count

from edge_agent.sessions.resuming import Resume
from edge_agent.training.shutdown import Shutdown
from isthmus import EdgeConfig, TrainingResult, run_training
from shared.errors import StoppedError
from tests.support.running import Listening, cut_at


async def to_the_end(config: EdgeConfig, cuts: Mapping[int, int], stop_after: int = 23) -> TrainingResult:
    """Run to the end by several agents. cuts: by the steps that each has done, the cut that it then moves to.

    stop_after: steps after which an agent drains.
    """
    for number in count():
        shutdown, done, deployers = Shutdown(), [], []

        def moved(now, shutdown=shutdown, done=done, deployers=deployers):
            done.append(now.steps)
            if (cut := cuts.get(len(done))) is not None:
                cut_at(deployers[0], cut)
            if len(done) == stop_after:
                shutdown.drain()

        listening = Listening(moved, lambda deployer, deployers=deployers: deployers.append(deployer))
        try:
            result = await run_training(config, listening, resume=Resume() if number else None, shutdown=shutdown)
        except StoppedError:
            continue
        assert number > 1, "it was stopped twice at least"
        return result
    raise AssertionError("it never ends")
