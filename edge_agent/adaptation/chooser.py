"""Who decides in a run: one engine at most, by what the placement is."""

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
    """The decisions of a run; None without a profile to decide by. Raises PlanError when that leaves nothing to choose."""
    if profile is None:
        return None
    make = make_decision_loop if has_one_cut(experiment.placement) else make_chain_decisions
    return make(experiment, profile, statistics, metrics)
