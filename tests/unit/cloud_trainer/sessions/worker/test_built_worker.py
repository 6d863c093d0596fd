"""The placements that a trainer accepts, and the memory that their batches take."""

import json
from bisect import bisect_left

import pytest
import torch

from cloud_trainer.sessions.limits import Limits
from cloud_trainer.sessions.worker.built_worker import build_worker
from cloud_trainer.sessions.worker.judging import MAX_DOCUMENT_CHARACTERS
from shared.bounds import MOST_WORKERS
from shared.errors import IsthmusError
from shared.placement import AGENT, Cargo, Placement, Route, Rows, Source, Tile, document_of, two_workers
from shared.version import PROTOCOL_VERSION
from shared.wire.isthmus.v1 import trainer_pb2 as pb
from shared.wire.isthmus.v1.tensor_pb2 import DataType, TensorHeader
from tests.support.placed import CPU, INPUTS, WIDTH, recipe

BLOCKS, BATCH, FLOAT = 4, 8, 4
WHOLE = Rows(0, BATCH)
CUT = two_workers(AGENT, "gpu", 2, BLOCKS, BATCH)
DOCUMENT = document_of(CUT)
LIMITS = Limits(tensor_bytes=1 << 20, staleness=4, session_bytes=1 << 28)


def request(document, *, worker="gpu", **changes):
    text = document if isinstance(document, str) else json.dumps(document)
    fields = {
        "protocol_version": PROTOCOL_VERSION,
        "model": pb.Model(factory="tests.support.placed:dropping", kwargs_json="{}"),
        "inputs": [TensorHeader(shape=[BATCH, INPUTS], dtype=DataType.DATA_TYPE_FLOAT32)],
        "recipe_json": recipe("adam").model_dump_json(),
        "block_names": [str(block) for block in range(BLOCKS)],
        "placement": pb.Placement(version=3, document_json=text),
        "worker": worker,
        "backward": "replay",
        "feedback": "batch",
    }
    return pb.OpenSessionRequest(**(fields | changes))


def built(document, *, limits=LIMITS, **changes):
    asked = request(document, **changes)
    return build_worker(asked, asked.placement, "s", ["tests.support"], limits, torch.device("cpu"))


def with_limits(**changes):
    return Limits(**({"tensor_bytes": 1 << 20, "staleness": 4, "session_bytes": 1 << 28} | changes))


def test_it_holds_the_blocks_of_its_worker_under_the_placement_that_was_sent():
    worker = built(DOCUMENT)
    assert worker.held.indices == (2, 3)
    assert worker.active.placement.version == 3
    assert worker.active.placement.tiles == CUT.tiles
    assert worker.held.device == CPU


def tile(worker, first, stop, rows=(0, BATCH)):
    return {"worker": worker, "blocks": [first, stop], "samples": list(rows)}


def changed(**changes):
    return DOCUMENT | changes


DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "the placement is no JSON"),
        (DEEP, "the placement is no JSON"),
        ("[1]", "the placement: the placement is"),
        ("{}", "schema is None"),
        (" " * (MAX_DOCUMENT_CHARACTERS + 1), f"at most {MAX_DOCUMENT_CHARACTERS} are taken"),
        (changed(owners={"9" * 5000: AGENT}), "must be a number in quotes"),
        (changed(workers=[AGENT, "other"], tiles=[tile(AGENT, 0, 2), tile("other", 2, 4)]), "is to be worker 'gpu'"),
        (changed(workers=[AGENT, "gpu", *map(str, range(MOST_WORKERS))]), f"at most {MOST_WORKERS} are taken"),
        (changed(tiles=[tile(AGENT, 0, 2), tile("gpu", 2, 3)]), "nobody has block 3"),
        (changed(tiles=[tile("gpu", 0, 4)]), r"takes none \(server\.accept_inputs\)"),
        (changed(sources=[{"worker": "gpu", "samples": [0, BATCH]}]), "a trainer has none"),
        (changed(staleness=5), r"more than this trainer's limit of 4 \(server\.max_staleness\)"),
        (
            changed(codecs=[{"from": AGENT, "to": "gpu", "cargo": "feature", "codec": "zip"}]),
            "codec 'zip' does not exist",
        ),
    ],
)
def test_a_placement_that_the_trainer_does_not_accept_is_refused_with_a_sentence(document, says):
    with pytest.raises(IsthmusError, match=says):
        built(document)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"worker": AGENT}, "of which 'edge' is the agent"),
        ({"worker": ""}, "is to be worker ''"),
        ({"backward": ""}, "backward is ''; it must be one of"),
        ({"feedback": "loud"}, "feedback is 'loud'; it must be one of"),
        ({"block_names": ["0", "1", "2"]}, "is a chain of 3 blocks and the trainer's of 4"),
        ({"block_names": ["0", "1", "2", "x"]}, "or their names differ"),
        ({"inputs": [TensorHeader(dtype=DataType.DATA_TYPE_FLOAT32)]}, "0 dimensions"),
    ],
)
def test_parameters_that_contradict_the_placement_are_refused_with_a_sentence(changes, says):
    with pytest.raises(IsthmusError, match=says):
        built(DOCUMENT, **changes)


NAMED = {
    "model": pb.Model(factory="tests.support.models.several:NamedEncoder", kwargs_json="{}"),
    "inputs": [
        TensorHeader(shape=[BATCH, 6], dtype=DataType.DATA_TYPE_BOOL),
        TensorHeader(shape=[BATCH, 6], dtype=DataType.DATA_TYPE_INT64),
    ],
    "input_names": ["attention_mask", "input_ids"],
    "block_names": ["tokens", "layers.0", "layers.1", "head"],
}


def test_a_mask_comes_to_a_trainer_that_takes_no_samples_where_the_agent_says_that_it_is_public():
    assert built(DOCUMENT, **NAMED, public_inputs=["attention_mask"]).held.indices == (2, 3)
    with pytest.raises(IsthmusError, match=r"takes none .*; .* what the input 'attention_mask' alone has made; "):
        built(DOCUMENT, **NAMED)
    with pytest.raises(IsthmusError, match=r"takes none \(server\.accept_inputs\)"):
        built(changed(tiles=[tile(AGENT, 0, 1), tile("gpu", 1, 4)]), **NAMED, public_inputs=["attention_mask"])


@pytest.mark.parametrize("public", [["mask"], ["attention_mask", "input_ids"], ["x" * 1000]])
def test_public_inputs_that_cannot_be_are_refused(public):
    with pytest.raises(IsthmusError, match="public inputs came that are none of the batch, or all of it"):
        built(DOCUMENT, **NAMED, public_inputs=public)


def test_raw_samples_come_where_the_operator_takes_them():
    worker = built(changed(tiles=[tile("gpu", 0, 4)]), limits=with_limits(accept_inputs=True))
    assert worker.held.indices == (0, 1, 2, 3)


def test_gradients_that_tell_of_raw_samples_come_where_the_operator_takes_samples():
    owned = changed(tiles=[tile(AGENT, 0, 2), tile("gpu", 2, 4)], owners={"0": "gpu"})
    with pytest.raises(IsthmusError, match=r"the gradient of block 0, .* takes none \(server\.accept_inputs\)"):
        built(owned)
    assert built(owned, limits=with_limits(accept_inputs=True)).held.indices == (0, 2, 3)
    assert built(changed(tiles=[tile(AGENT, 0, 2), tile("gpu", 2, 4)], owners={"1": "gpu"})).held.indices == (1, 2, 3)


def test_a_trainer_does_not_judge_permissions_of_other_trainers():
    tiles = [tile("near", 0, 2), tile("gpu", 2, 4)]
    assert built(changed(workers=[AGENT, "near", "gpu"], tiles=tiles)).held.indices == (2, 3)
    with pytest.raises(IsthmusError, match="accept_inputs"):
        built(changed(workers=[AGENT, "near", "gpu"], tiles=tiles), worker="near")


def feature_bytes(samples=BATCH):
    """Return the bytes of a feature as it arrived and as it was decoded."""
    return 2 * samples * WIDTH * FLOAT


def test_a_batch_counts_all_that_crosses_here_in_either_direction_as_it_travels_and_as_it_is():
    placed = built(DOCUMENT)
    assert placed.judge.judged(CUT).uses.trained[:2] == (1, 2 * feature_bytes()), "a feature, and its error gradient"
    assert placed.judge.judged(CUT).uses.evaluated.each_bytes == feature_bytes()
    middle = Placement(
        0,
        BLOCKS,
        BATCH,
        CUT.workers,
        (Tile(AGENT, 0, 1, WHOLE), Tile("gpu", 1, 3, WHOLE), Tile(AGENT, 3, 4, WHOLE)),
        CUT.sources,
        staleness=3,
    )
    assert placed.judge.judged(middle).uses.trained[:2] == (4, 4 * feature_bytes()), "two of each, K + 1 times"
    codecs = {Route(AGENT, "gpu", Cargo.FEATURE): "fp16"}
    smaller = Placement(0, BLOCKS, BATCH, CUT.workers, CUT.tiles, CUT.sources, codecs=codecs)
    assert placed.judge.judged(smaller).uses.trained.each_bytes <= 2 * feature_bytes()


def test_a_shared_block_counts_with_its_gradient_and_its_weights():
    tiles = (Tile(AGENT, 0, 2, Rows(0, 4)), Tile("near", 0, 2, Rows(4, 8)), Tile("gpu", 2, 4, WHOLE))
    placement = Placement(
        0, BLOCKS, BATCH, (AGENT, "near", "gpu"), tiles, (Source(AGENT, WHOLE),), owners={0: "gpu", 1: "near"}
    )
    judge = built(document_of(placement), limits=with_limits(accept_inputs=True)).judge
    weights = sum(value.nbytes for value in judge.chain.blocks[0].named_parameters().values())
    shared = 2 * 2 * 2 * weights  # both sharers, both ways, and two steps; no optimizer state
    assert judge.judged(placement).uses.trained.each_bytes == 2 * feature_bytes() + shared


def test_the_weights_that_are_kept_for_a_worker_without_a_state_count_once_more():
    tiles = (Tile(AGENT, 0, 2, Rows(0, 4)), Tile("near", 0, 2, Rows(4, 8)), Tile("gpu", 2, 4, WHOLE))
    placement = Placement(
        0, BLOCKS, BATCH, (AGENT, "near", "gpu"), tiles, (Source(AGENT, WHOLE),), owners={0: "gpu", 1: "gpu"}
    )
    judge = built(document_of(placement), limits=with_limits(accept_inputs=True)).judge
    blocks = judge.chain.blocks[:2]
    weights = sum(value.nbytes for block in blocks for value in block.named_parameters().values())
    shared = 2 * 2 * 2 * weights + weights  # as above, and what the near worker needs if it loses all
    assert judge.judged(placement).uses.trained.each_bytes == 2 * feature_bytes() + shared
    near = built(document_of(placement), worker="near", limits=with_limits(accept_inputs=True)).judge
    assert near.judged(placement).uses.trained.in_flight == 2, "what was kept comes at once"


def test_samples_that_come_before_their_step_count_and_what_is_kept_for_steps_that_are_computed_before():
    tiles = (Tile(AGENT, 0, 2, Rows(0, 4)), Tile("near", 0, 2, Rows(4, 8)), Tile("gpu", 2, 4, WHOLE))
    placement = Placement(
        0, BLOCKS, BATCH, (AGENT, "near", "gpu"), tiles, (Source(AGENT, WHOLE),), owners={0: "gpu", 1: "gpu"}
    )
    ahead = recipe("adam", samples_ahead=2).model_dump_json()

    def trained(worker, **changes):
        document = document_of(placement)
        judge = built(document, worker=worker, limits=with_limits(accept_inputs=True), **changes).judge
        return judge.judged(placement).uses.trained

    near, gpu = (trained(worker, recipe_json=ahead) for worker in ("near", "gpu"))
    assert (near.labels_ahead, gpu.labels_ahead) == (0, 2)
    assert near.in_flight == trained("near").in_flight + 2
    sample_bytes = 2 * 4 * INPUTS * FLOAT
    assert near.ahead_bytes >= 2 * sample_bytes
    assert gpu.ahead_bytes > 0 == trained("gpu").ahead_bytes


def test_weights_and_graphs_that_wait_count_with_the_policy_that_keeps_them():
    middle = document_of(
        Placement(
            0,
            BLOCKS,
            BATCH,
            CUT.workers,
            (Tile(AGENT, 0, 1, WHOLE), Tile("gpu", 1, 3, WHOLE), Tile(AGENT, 3, 4, WHOLE)),
            CUT.sources,
        )
    )
    replay, stash = (built(middle, backward=name).judge for name in ("replay", "stash"))
    placement = built(middle).active.placement
    assert stash.judged(placement).uses.trained.each_bytes > replay.judged(placement).uses.trained.each_bytes
    assert stash.judged(CUT).uses.trained == replay.judged(CUT).uses.trained, (
        "from the last block the way goes straight back"
    )


def test_it_takes_no_more_memory_than_a_session_may_have():
    document = changed(staleness=4)

    def is_taken(session_bytes):
        try:
            built(document, limits=with_limits(session_bytes=session_bytes))
        except IsthmusError as refused:
            return "server.max_session_bytes" not in str(refused)
        return True

    least = bisect_left(range(1 << 18), True, key=is_taken)
    judge = built(document, limits=with_limits(session_bytes=least)).judge
    judge.memory.uses = judge.judged(CUT).uses
    each = judge.memory.uses.trained.each_bytes
    assert judge.memory.max_staleness == 4
    assert built(document | {"staleness": 3}, limits=with_limits(session_bytes=least - each))


def test_a_placement_with_which_it_could_train_and_not_evaluate_is_refused_when_it_is_judged():
    uses = built(DOCUMENT).active.uses
    train, evaluate = (each.in_flight * each.each_bytes for each in uses)
    assert evaluate > train, "a few batches are evaluated at a time, also with K = 0"

    def refusal(session_bytes):
        try:
            built(DOCUMENT, limits=with_limits(session_bytes=session_bytes))
        except IsthmusError as refused:
            return str(refused)
        return ""

    least = bisect_left(range(1 << 18), True, key=lambda count: not refusal(count))
    assert f"{least - evaluate + train} bytes of memory to train and {least} to evaluate" in refusal(least - 1)


def test_a_feature_larger_than_any_tensor_may_be_is_refused():
    with pytest.raises(IsthmusError, match=r"server\.max_tensor_bytes"):
        built(DOCUMENT, limits=with_limits(tensor_bytes=BATCH * WIDTH * FLOAT - 1))
