"""Placements: tiles of blocks and samples on workers, their validity, and their consequences. Numbers and names only."""

from shared.bounds import AGENT
from shared.placement.arrival_judge import ArrivalJudge
from shared.placement.chains import at_cuts, chain_workers, cuts_of
from shared.placement.changes import BlockMove, moves
from shared.placement.deployment import Deployment
from shared.placement.derived import (
    Answer,
    BlockSlice,
    Crossing,
    Link,
    answers,
    crossings,
    first_worker,
    from_group,
    gradient_crossings,
    held_blocks,
    kept_stage,
    loss_rows,
    stages,
    to_group,
    weight_crossings,
)
from shared.placement.document import document_of, load_placement, parse_placement
from shared.placement.exchange import Bundle, bundles
from shared.placement.facts import BlockFacts, ModelFacts, Permissions, ValueFacts, unnamed_blocks
from shared.placement.gradients_tell import may_keep, tells_inputs, told_by_gradients
from shared.placement.norms import scaling_worker
from shared.placement.programs import (
    Backward,
    Clip,
    Forward,
    Loss,
    Norms,
    Operation,
    Program,
    Recall,
    Receive,
    Send,
    Sum,
    Take,
    Update,
)
from shared.placement.ranges import BlockRange, parse_range, ranges_of
from shared.placement.replacing import hand_over, reassign_worker, with_worker
from shared.placement.replicas import OnDisk, fetches, replica_keepers
from shared.placement.segments import Order, answering_segment, segments, urgency_of_segment
from shared.placement.spreading import spread
from shared.placement.step_plan import PlacementPlan, StepPlan
from shared.placement.tiles import GROUP, Cargo, Exchange, Placement, Route, Rows, Source, Tile, two_workers
from shared.placement.urgency import urgency
from shared.placement.validity import carries_raw, check, check_size, why_raw
from shared.placement.window import Window

__all__ = [
    "AGENT",
    "GROUP",
    "Answer",
    "ArrivalJudge",
    "Backward",
    "BlockFacts",
    "BlockMove",
    "BlockRange",
    "BlockSlice",
    "Bundle",
    "Cargo",
    "Clip",
    "Crossing",
    "Deployment",
    "Exchange",
    "Forward",
    "Link",
    "Loss",
    "ModelFacts",
    "Norms",
    "OnDisk",
    "Operation",
    "Order",
    "Permissions",
    "Placement",
    "PlacementPlan",
    "Program",
    "Recall",
    "Receive",
    "Route",
    "Rows",
    "Send",
    "Source",
    "StepPlan",
    "Sum",
    "Take",
    "Tile",
    "Update",
    "ValueFacts",
    "Window",
    "answering_segment",
    "answers",
    "at_cuts",
    "bundles",
    "carries_raw",
    "chain_workers",
    "check",
    "check_size",
    "crossings",
    "cuts_of",
    "document_of",
    "fetches",
    "first_worker",
    "from_group",
    "gradient_crossings",
    "hand_over",
    "held_blocks",
    "kept_stage",
    "load_placement",
    "loss_rows",
    "may_keep",
    "moves",
    "parse_placement",
    "parse_range",
    "ranges_of",
    "reassign_worker",
    "replica_keepers",
    "scaling_worker",
    "segments",
    "spread",
    "stages",
    "tells_inputs",
    "to_group",
    "told_by_gradients",
    "two_workers",
    "unnamed_blocks",
    "urgency",
    "urgency_of_segment",
    "weight_crossings",
    "why_raw",
    "with_worker",
]
