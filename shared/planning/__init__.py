"""Planning: the costs of deployments and placements, and the choice of a deployment. Numbers only: no torch, no gRPC, no clock.

The plan is a layout, costed from a profile (profile/) under conditions (cost/). families/ lists the possible layouts.
planners/ chooses one, and engine/ chooses during a run. For any placement, operation by operation:
operation_costs.py, tasks.py and placement_simulator.py. Judged over traces: runs/.
"""

from shared.planning.cost import (
    Conditions,
    Loads,
    Simulated,
    Times,
    conditions_of,
    loads_of,
    moved_bits,
    moving_seconds,
    pipeline_seconds,
    runs_of,
    stacked_loads,
    steady_seconds,
)
from shared.planning.engine import (
    BlockRange,
    Decision,
    Engine,
    EngineConfig,
    Observation,
    Outcome,
    Reason,
    RiskLimits,
    Usual,
)
from shared.planning.families.question import Question
from shared.planning.families.tiers.plans import TierPlan, TierPlanner
from shared.planning.layout import Layout, feature_routes, layout_of, stacked
from shared.planning.measurements import FLOAT32_BITS, LinearSeconds, ProfiledBlock
from shared.planning.operation_costs import BlockCosts, BlockSeconds, CodecCosts, Linear, Message, OperationCosts
from shared.planning.placement_simulator import PlacementRun, simulate_placement, steady_step_seconds
from shared.planning.planners.accurate import accurate
from shared.planning.planners.edge_only import edge_only
from shared.planning.planners.fixed import fixed
from shared.planning.planners.greedy import first_deployment, greedy
from shared.planning.planners.jointdnn import jointdnn
from shared.planning.planners.plan import Plan, Planner
from shared.planning.planners.registry import PLANNERS
from shared.planning.profile import (
    SCHEMA,
    MeasuredLink,
    MessageSeconds,
    Profile,
    WorkerProfile,
    load_profile,
    no_times,
    pair_profile,
    parse_profile,
    profile_to_json,
    with_batch_size,
)
from shared.planning.profile_operations import layout_tasks
from shared.planning.rates import Rates, parse_rate, parse_seconds
from shared.planning.runs.comparison import CHAIN_CONTESTANTS, CONTESTANTS, Result, Setting, compare
from shared.planning.runs.layout_run import simulate_layouts
from shared.planning.runs.pair_run import simulate
from shared.planning.runs.run import PROBE_SECONDS, Run, Switch
from shared.planning.search import Found, best, best_order, most_exact
from shared.planning.space import SearchSpace
from shared.planning.step_tasks import step_tasks
from shared.planning.tasks import StepTasks
from shared.planning.trace_files import load_trace
from shared.planning.traces import LinkTrace, Trace

__all__ = [
    "CHAIN_CONTESTANTS",
    "CONTESTANTS",
    "FLOAT32_BITS",
    "PLANNERS",
    "PROBE_SECONDS",
    "SCHEMA",
    "BlockCosts",
    "BlockRange",
    "BlockSeconds",
    "CodecCosts",
    "Conditions",
    "Decision",
    "Engine",
    "EngineConfig",
    "Found",
    "Layout",
    "Linear",
    "LinearSeconds",
    "LinkTrace",
    "Loads",
    "MeasuredLink",
    "Message",
    "MessageSeconds",
    "Observation",
    "OperationCosts",
    "Outcome",
    "PlacementRun",
    "Plan",
    "Planner",
    "Profile",
    "ProfiledBlock",
    "Question",
    "Rates",
    "Reason",
    "Result",
    "RiskLimits",
    "Run",
    "SearchSpace",
    "Setting",
    "Simulated",
    "StepTasks",
    "Switch",
    "TierPlan",
    "TierPlanner",
    "Times",
    "Trace",
    "Usual",
    "WorkerProfile",
    "accurate",
    "best",
    "best_order",
    "compare",
    "conditions_of",
    "edge_only",
    "feature_routes",
    "first_deployment",
    "fixed",
    "greedy",
    "jointdnn",
    "layout_of",
    "layout_tasks",
    "load_profile",
    "load_trace",
    "loads_of",
    "most_exact",
    "moved_bits",
    "moving_seconds",
    "no_times",
    "pair_profile",
    "parse_profile",
    "parse_rate",
    "parse_seconds",
    "pipeline_seconds",
    "profile_to_json",
    "runs_of",
    "simulate",
    "simulate_layouts",
    "simulate_placement",
    "stacked",
    "stacked_loads",
    "steady_seconds",
    "steady_step_seconds",
    "step_tasks",
    "with_batch_size",
]
