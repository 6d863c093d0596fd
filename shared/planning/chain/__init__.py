"""A model on a chain of workers (paper 001): its measurements, the best blocks of each stage, and their cost."""

from shared.planning.chain.chain_tasks import chain_placement, chain_tasks
from shared.planning.chain.comparison import CHAIN_CONTESTANTS, ChainSetting, compare_chain
from shared.planning.chain.costs import ChainCosts, Partition, PartitionCost
from shared.planning.chain.device_factors import DeviceFactors
from shared.planning.chain.engine import ChainDecision, ChainEngine, Reason
from shared.planning.chain.plan import (
    MOST_STAGES_TO_ORDER,
    ChainPlan,
    plan_any_order,
    plan_chain,
    plan_chain_accurately,
)

__all__ = [
    "CHAIN_CONTESTANTS",
    "MOST_STAGES_TO_ORDER",
    "ChainCosts",
    "ChainDecision",
    "ChainEngine",
    "ChainPlan",
    "ChainSetting",
    "DeviceFactors",
    "Partition",
    "PartitionCost",
    "Reason",
    "chain_placement",
    "chain_tasks",
    "compare_chain",
    "plan_any_order",
    "plan_chain",
    "plan_chain_accurately",
]
