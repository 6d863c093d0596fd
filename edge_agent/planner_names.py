"""Names of planners and of the strategies of a group, and the default settings of a plan.

Command lines show these; `edge_agent.planning` has what computes, and needs numpy for it.
"""

ACCURATE, GREEDY, FIXED = "accurate", "greedy", "fixed"
"""`fixed` is no planner, since its deployment is given."""
PLANNER_NAMES = (ACCURATE, GREEDY)
"""Planners of two workers; rivals of theirs may be installed."""
RUN_PLANNER_NAMES = (GREEDY, FIXED)
"""Planners that the engine of a run can use: `greedy` follows the link as it changes, `fixed` keeps the deployment."""

BEST, HIERTRAIN, JOINTDNN, JOINTDNN_PLUS, JALAD = "best", "hiertrain", "jointdnn", "jointdnn+", "jalad"
ALL_DEVICE, ALL_EDGE, ALL_CLOUD = "all-device", "all-edge", "all-cloud"
TIER_PLANNER_NAMES = (BEST, HIERTRAIN, JOINTDNN, JOINTDNN_PLUS, JALAD, ALL_DEVICE, ALL_EDGE, ALL_CLOUD)
"""Planners of three tiers."""

PARTITION = "partition"
"""The plan of a chain, which a simulation compares with the engine."""

EDGEMOVE = "edgemove"
"""Policy of choosing a trainer by the algorithms of paper 003."""

SEQUENTIAL, LAYERWISE, IBATCH, DYNACOMM, FLOW = "sequential", "layerwise", "ibatch", "dynacomm", "flow"
STRATEGY_NAMES = (SEQUENTIAL, LAYERWISE, IBATCH, DYNACOMM, FLOW)
"""Strategies by which the members of a group exchange parameters; all but the last with a barrier after each step."""

DEFAULT_BITS = (8, 32)
"""Bit widths that plans and the engine of a run choose from. Fewer than 8 cost accuracy, so they have to be asked for."""
EXACTNESS_MARGIN = 0.02
"""Part of the time per step that a plan gives up for more bits and a smaller K. A plan foresees a step to within some 10 %, and
two profiles of one pair differ by some percent, so a gain below this is not one that a user would find again."""
DEFAULT_HORIZON_STEPS = 100
"""Steps that a deployment is expected to last where nothing is known of the link's past."""
