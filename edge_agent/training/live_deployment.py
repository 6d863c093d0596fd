"""The deployment of a running session: what the next batch starts under, and what the trainer holds.

The two differ between a change of K or codecs and the first batch under it that is sent.
"""

from collections.abc import Mapping

from edge_agent.training.listener import RunListener
from shared.codec import codec_by_name
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


class LiveDeployment:
    """Used on the event loop."""

    def __init__(
        self, deployment: Deployment, listener: RunListener, staleness_changes: Mapping[int, int] | None = None
    ) -> None:
        """staleness_changes: the planned K by the step from which on it holds."""
        self._listener = listener
        self._staleness_changes = dict(staleness_changes or {})
        self._followed_step = -1
        self.now = deployment
        """What every batch from now on is started under."""
        self.in_force = deployment
        """What the trainer was told last, or has said itself: everything is sent under it now."""

    def change(
        self, *, staleness: int | None = None, codec: str | None = None, downlink_codec: str | None = None
    ) -> None:
        """Change K or codecs from the next batch on; nothing is drained. Raises ConfigError for a codec that is not there."""
        changed = Deployment()
        changed.CopyFrom(self.now)
        changed.version += 1
        if staleness is not None:
            changed.staleness = staleness
        changed.codec = codec_by_name(codec or changed.codec).name
        changed.downlink_codec = codec_by_name(downlink_codec or changed.downlink_codec).name
        self.now = changed

    def follow_schedule(self, next_step: int) -> None:
        """Change K where a change is planned for `next_step`, which has not started yet."""
        if next_step != self._followed_step:
            self._followed_step = next_step
            if (staleness := self._staleness_changes.get(next_step)) is not None:
                self.change(staleness=staleness)

    def note_in_force(self, deployment: Deployment) -> None:
        """Note that the trainer holds this deployment: it was told, or it has said so."""
        self.in_force = deployment
        self._listener.deployment_changed(deployment)

    def redeploy(self, deployment: Deployment) -> None:
        """Go on under a deployment that the trainer holds already, with nothing in flight."""
        self.now = deployment
        self.note_in_force(deployment)

    def restart(self, deployment: Deployment) -> None:
        """Go on from an earlier step, under the deployment of that step; changes of K that were planned later happen again."""
        self._followed_step = -1
        self.redeploy(deployment)
