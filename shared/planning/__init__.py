"""Profiles, cost model, planners, simulator and decision engine: pure functions over numbers. No torch, no gRPC, no clock."""

from shared.planning.bound import most_steps
from shared.planning.comparison import CONTESTANTS, PROBE_SECONDS, Result, compare
from shared.planning.cost import (
    Deployment,
    PhaseSeconds,
    Rates,
    migration_seconds,
    pipeline_seconds,
    steady_seconds,
    work_of,
)
from shared.planning.engine import Decision, Engine, EngineConfig
from shared.planning.ledger import RiskLimits
from shared.planning.operation_costs import BlockCosts, BlockSeconds, CodecCosts, Linear, Message, OperationCosts
from shared.planning.outcome import Outcome
from shared.planning.placement_simulator import PlacementRun, simulate_placement
from shared.planning.planners import (
    DEFAULT_BITS,
    DEFAULT_HORIZON_STEPS,
    EDGE_ONLY,
    FIXED,
    GREEDY,
    PLANNERS,
    Plan,
    Planner,
    SearchSpace,
    candidates,
    edge_only,
    first_deployment,
    fixed,
    greedy,
    jointdnn,
)
from shared.planning.profile import (
    FLOAT32_BITS,
    SCHEMA,
    Block,
    Encode,
    Overhead,
    Profile,
    load_profile,
    parse_profile,
    profile_to_json,
)
from shared.planning.rates import parse_rate, parse_seconds
from shared.planning.simulator import Run, Switch, simulate
from shared.planning.step_cost import StepCost, step_cost
from shared.planning.tasks import StepTasks, step_tasks
from shared.planning.trace_files import load_trace
from shared.planning.traces import LinkTrace, Trace

__all__ = [
    "CONTESTANTS",
    "DEFAULT_BITS",
    "DEFAULT_HORIZON_STEPS",
    "EDGE_ONLY",
    "FIXED",
    "FLOAT32_BITS",
    "GREEDY",
    "PLANNERS",
    "PROBE_SECONDS",
    "SCHEMA",
    "Block",
    "BlockCosts",
    "BlockSeconds",
    "CodecCosts",
    "Decision",
    "Deployment",
    "Encode",
    "Engine",
    "EngineConfig",
    "Linear",
    "LinkTrace",
    "Message",
    "OperationCosts",
    "Outcome",
    "Overhead",
    "PhaseSeconds",
    "PlacementRun",
    "Plan",
    "Planner",
    "Profile",
    "Rates",
    "Result",
    "RiskLimits",
    "Run",
    "SearchSpace",
    "StepCost",
    "StepTasks",
    "Switch",
    "Trace",
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
    "most_steps",
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
