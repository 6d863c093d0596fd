"""What a deployment or a placement costs, and which deployment to have. Numbers only: no torch, no gRPC, no clock.

For two workers and a cut: profile.py, cost.py and space.py; on them planners/, engine/ and simulator.py; and comparison.py for
all of these over traces. For any placement: operation_costs.py, tasks.py, step_cost.py, placement_simulator.py.
For the stages of a chain: chain/.
"""

from shared.planning.comparison import CONTESTANTS, PROBE_SECONDS, Result, compare
from shared.planning.cost import (
    PhaseSeconds,
    PlannedDeployment,
    migration_seconds,
    pipeline_seconds,
    steady_seconds,
    work_of,
)
from shared.planning.engine import Decision, Engine, EngineConfig, Outcome, RiskLimits
from shared.planning.measurements import FLOAT32_BITS, LinearSeconds, ProfiledBlock
from shared.planning.operation_costs import BlockCosts, BlockSeconds, CodecCosts, Linear, Message, OperationCosts
from shared.planning.placement_simulator import PlacementRun, simulate_placement
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
)
from shared.planning.rates import Rates, parse_rate, parse_seconds
from shared.planning.simulator import Run, Switch, simulate
from shared.planning.space import SearchSpace, candidates
from shared.planning.step_cost import StepCost, step_cost
from shared.planning.tasks import StepTasks, step_tasks
from shared.planning.trace_files import load_trace
from shared.planning.traces import LinkTrace, Trace

__all__ = [
    "CONTESTANTS",
    "FLOAT32_BITS",
    "PLANNERS",
    "PROBE_SECONDS",
    "SCHEMA",
    "BlockCosts",
    "BlockSeconds",
    "CodecCosts",
    "Decision",
    "Engine",
    "EngineConfig",
    "Linear",
    "LinearSeconds",
    "LinkTrace",
    "MeasuredLink",
    "Message",
    "MessageSeconds",
    "OperationCosts",
    "Outcome",
    "PhaseSeconds",
    "PlacementRun",
    "Plan",
    "PlannedDeployment",
    "Planner",
    "Profile",
    "ProfiledBlock",
    "Rates",
    "Result",
    "RiskLimits",
    "Run",
    "SearchSpace",
    "StepCost",
    "StepTasks",
    "Switch",
    "Trace",
    "WorkerProfile",
    "accurate",
    "candidates",
    "compare",
    "edge_only",
    "first_deployment",
    "fixed",
    "greedy",
    "jointdnn",
    "load_profile",
    "load_trace",
    "migration_seconds",
    "no_times",
    "pair_profile",
    "parse_profile",
    "parse_rate",
    "parse_seconds",
    "pipeline_seconds",
    "profile_to_json",
    "simulate",
    "simulate_placement",
    "steady_seconds",
    "step_cost",
    "step_tasks",
    "work_of",
]
