"""The choice of a run's engine: one at most, by the kind of the placement."""

from edge_agent.adaptation.chain_decisions import ChainDecisions, make_chain_decisions
from edge_agent.adaptation.decisions import DecisionLoop, make_decision_loop
from edge_agent.experiment.building import Experiment, has_one_cut
from edge_agent.observability.metrics import EngineMetrics
from edge_agent.training.statistics import Statistics
from shared.planning import Profile

Decisions = DecisionLoop | ChainDecisions


def make_decisions(
    experiment: Experiment, profile: Profile | None, statistics: Statistics, metrics: EngineMetrics
) -> Decisions | None:
    """Make the decisions of a run; None without a profile. Raises PlanError if that leaves nothing to choose."""
    if profile is None:
        return None
    make = make_decision_loop if has_one_cut(experiment.placement) else make_chain_decisions
    return make(experiment, profile, statistics, metrics)
