"""The place of updates in a worker's program: no update waits without need, or holds up what others wait for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.placement import (
    Backward,
    BlockFacts,
    Cargo,
    Forward,
    ModelFacts,
    Placement,
    Receive,
    Rows,
    Send,
    Source,
    StepPlan,
    Tile,
    Update,
)
from tests.support.placements import WORKERS, models, placements

FOUR = ModelFacts(tuple(BlockFacts(f"b{index}") for index in range(4)))
WHOLE = Rows(0, 8)
LABELS_STAY = Placement(
    version=0,
    blocks=4,
    batch_size=8,
    workers=WORKERS,
    tiles=(Tile("edge", 0, 1, WHOLE), Tile("near", 1, 3, WHOLE), Tile("edge", 3, 4, WHOLE)),
    sources=(Source("edge", WHOLE),),
)


@given(data=st.data())
def test_an_update_that_needs_no_other_worker_waits_for_none(data):
    model = data.draw(models())
    placement = data.draw(placements(model))
    plan = StepPlan(placement, model)
    alone = {block for block, facts in enumerate(model.blocks) if facts.trainable} - placement.shared_blocks
    for worker in placement.workers:
        waited: set[int] = set()
        has_updated = False
        for operation in plan.program(worker):
            match operation:
                case Receive():
                    waited |= alone
                    has_updated = False
                case Forward(stage) | Backward(stage, _):
                    waited -= {*stage.blocks}
                    assert not has_updated, "others wait for what follows"
                case Send(crossing) if crossing.cargo is not Cargo.WEIGHTS:
                    assert not has_updated, "others wait for it"
                case Update(block):
                    assert block not in waited
                    has_updated = True


@pytest.mark.parametrize(
    ("staleness", "changes", "late"),
    [
        (2, {}, {0, 1, 2}),
        (0, {}, set()),
        (2, {"clipped_together": True}, {0, 1, 2, 3}),
        (2, {"scaled": True}, {0, 1, 2, 3}),
        (0, {"clipped_together": True}, set()),
        (2, {"together": ((0, 3),)}, {0, 1, 2, 3}),
        (
            2,
            {"blocks": (*FOUR.blocks[:3], BlockFacts("uses block 0", trainable=False)), "together": ((0, 3),)},
            {0, 1, 2, 3},
        ),
        (2, {"blocks": tuple(BlockFacts(f"b{index}", trainable=index > 1) for index in range(4))}, {2}),
    ],
)
def test_updates_are_late_where_k_lets_others_come_before_them(staleness, changes, late):
    labels_stay = replace(LABELS_STAY, staleness=staleness)
    assert StepPlan(labels_stay, replace(FOUR, **changes, values=())).late_blocks == late
    assert not StepPlan(labels_stay, FOUR, training=False).late_blocks
