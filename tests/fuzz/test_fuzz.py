"""A small part of `make fuzz`, the same every time."""

from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import find, settings

from cloud_trainer.rpc.access import SCOPES
from shared.placement import Cargo
from shared.wire.isthmus.v1.link_pb2 import LinkMessage
from tests.fuzz.agent import fuzz_agent
from tests.fuzz.files import kinds, read_damaged
from tests.fuzz.messages import DRAIN, calls
from tests.fuzz.placements import fuzz_placements
from tests.fuzz.trainer import MAX_GROWTH_BYTES, State, fuzz_trainer

FEW_MESSAGES, FEW_FILES, FEW_PLACEMENTS = 200, 25, 50
MESSAGES, FILES, PLACEMENTS, RUNS = 1500, 100, 250, 40
KINDS = kinds()


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@pytest.mark.parametrize("count", [FEW_FILES, pytest.param(FILES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_refused_in_words_or_read(name, count, tmp_path):
    assert 0 < read_damaged(KINDS[name], tmp_path, count) < count, "some are as they were, and some are not"


@pytest.mark.parametrize("count", [FEW_PLACEMENTS, pytest.param(PLACEMENTS, marks=pytest.mark.slow)])
def test_where_labels_stay_no_label_and_no_output_leaves_whoever_has_the_sample(count):
    crossed = fuzz_placements(count, 0)
    assert crossed.placements == count
    assert crossed.by_cargo.keys() == set(Cargo) - {Cargo.LABEL}, "everything else crosses"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_a_trainer_under_a_few_generated_messages_refuses_in_words_and_then_trains_exactly(tmp_path):
    report = fuzz_trainer(FEW_MESSAGES, 0, tmp_path)
    assert report.messages >= FEW_MESSAGES
    assert report.grown_bytes < MAX_GROWTH_BYTES
    assert {code for _, code in report.ends} > {"OK"}, "some are right, and some are not"


@pytest.mark.parametrize(
    "is_meant",
    [
        lambda link: any(frame.tensor.is_absent for frame in link.frames),
        lambda link: any(len(done.order) > 2 for done in link.dones),
    ],
    ids=["an absent gradient", "an order"],
)
def test_what_a_link_may_bring_is_drawn(is_meant):
    def is_drawn(call):
        for body, _ in call.bodies if call.method.endswith("/Link") else ():
            with suppress(DecodeError):
                if is_meant(LinkMessage.FromString(body)):
                    return True
        return False

    assert find(calls(), is_drawn, settings=settings(max_examples=5000, database=None))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_a_trainer_under_generated_messages_refuses_in_words_and_then_trains_exactly(tmp_path):
    report = fuzz_trainer(MESSAGES, 0, tmp_path)
    assert report.messages >= MESSAGES
    assert report.grown_bytes < MAX_GROWTH_BYTES
    assert {method for method, _ in report.ends} == {path.rpartition("/")[2] for path in SCOPES.keys() - {DRAIN}}, (
        "every RPC was called"
    )
    assert report.states.keys() == set(State), "sessions were in every state"
    refused = {method for method, code in report.ends if code != "OK"}
    assert refused >= {"OpenSession", "Link", "UploadBlock", "CommitPlacement", "MeasureStage"}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_an_agent_whose_trainer_lies_ends_with_a_result_or_a_sentence():
    report = fuzz_agent(RUNS)
    assert report.runs == RUNS
    assert report.ends.total() == RUNS
    assert report.told.total() >= RUNS / 3, "the other runs do not come to the answer that was chosen"
    assert {"Link", "JoinSession", "CheckpointWorker", "DownloadBlock"} <= (+report.told).keys(), (
        "answers of every kind are changed"
    )
