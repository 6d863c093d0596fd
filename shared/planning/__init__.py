"""Profiles, cost model, planners, simulator and decision engine: pure functions over numbers. No torch, no gRPC, no clock."""

from shared.planning.cost import Deployment, Rates, Stages, migration_seconds, pipeline_seconds, steady_seconds, work_of
from shared.planning.planners import (
    DEFAULT_BITS,
    DEFAULT_HORIZON_STEPS,
    Plan,
    SearchSpace,
    edge_only,
    fixed,
    greedy,
    jointdnn,
)
from shared.planning.profile import (
    BIT_WIDTHS,
    SCHEMA,
    Block,
    Encode,
    Profile,
    load_profile,
    parse_profile,
    profile_to_json,
)
from shared.planning.rates import parse_rate, show_rate
from shared.planning.trace_files import load_trace
from shared.planning.traces import Link, Trace
