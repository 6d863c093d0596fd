"""What this version trains: a workload on two workers, the blocks of it that are here, and its first deployment."""

from edge_agent.config import EdgeConfig
from edge_agent.experiment.placing import placement_of
from edge_agent.experiment.privacy import check_labels_may_leave
from edge_agent.experiment.two_workers import deployment_of
from edge_agent.experiment.workload import Workload
from shared.model.build import check_cut
from shared.training.device import choose_device, prepare_device
from shared.training.held_blocks import HeldBlocks
from shared.wire.isthmus.v1.trainer_pb2 import Deployment


class Experiment(Workload):
    """Raises ConfigError, DataError or ModelError for what cannot be trained, or not by this version."""

    def __init__(self, config: EdgeConfig, schedule_steps: int | None = None) -> None:
        """See `Workload`."""
        super().__init__(config, schedule_steps)
        # This version's trainer computes the loss at every cut, so it gets the labels where all blocks are here too.
        check_labels_may_leave(self.labels_that_are_inputs, [config.only_trainer.name], config.privacy)
        chosen = config.deployment
        self.deployment = deployment_of(placement_of(self), chosen.codec, chosen.downlink_codec)
        device = choose_device(config.compute.device)
        prepare_device(device, deterministic=config.compute.deterministic)
        self.held = HeldBlocks(self.chain, self.recipe, device, range(self.deployment.cut))

    def begin_with(self, deployment: Deployment) -> None:
        """Begin with another deployment than the configuration's. Raises ModelError for a cut out of range."""
        check_cut(deployment.cut, self.chain)
        self.held.hold(range(deployment.cut), {})
        self.deployment = deployment

    @property
    def trainers(self) -> tuple[str, ...]:
        """The name of the trainer."""
        return (self.config.only_trainer.name,)

    @property
    def largest_staleness(self) -> int:
        """The largest limit K that the run is known to come to."""
        return max(self.deployment.staleness, *(limit for _, limit in self.config.deployment.staleness_schedule))

    @property
    def staleness_changes(self) -> dict[int, int]:
        """The steps after the first from which on the configuration sets another limit K, and which."""
        schedule = self.config.deployment
        unit_steps = self.loader.steps_per_epoch if schedule.staleness_every == "epoch" else 1
        return {position * unit_steps: limit for position, limit in schedule.staleness_schedule[1:]}
