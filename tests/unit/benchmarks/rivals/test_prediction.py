"""The accuracy of the predictor for devices that it has never seen."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rivals.prediction import evaluate, main
from edge_agent.planning.prediction import Sample, known_devices
from shared.errors import ExitCode, PlanError
from tests.support.examples import examples
from tests.support.latency import costs_of, table_of, write_table


def known(*kinds, noise=0.0):
    return known_devices({f"d{kind}": table_of(f"d{kind}", costs_of(kind), noise=noise) for kind in kinds})


def test_a_device_of_a_known_kind_is_predicted_from_its_reference():
    found = evaluate(known(0, 1, 2, 4, 6), table_of("new", costs_of(3)), 0)
    assert (found.used, found.judged) == (10, 26)
    assert found.predictor.within_5 == 1.0


def test_a_known_device_is_recognised():
    found = evaluate(known(0, 1, 2, 4, 6), table_of("twin", costs_of(4)), 0)
    assert found.predictor.worst_error < 0.01


def test_one_accident_among_the_reference_does_not_upset_the_others():
    table = table_of("new", costs_of(3))
    accident = table.reference[4]
    samples = list(table.samples)
    samples[accident] = Sample(layers=samples[accident].layers, seconds=samples[accident].seconds * 4)
    found = evaluate(known(0, 1, 2, 4, 6, noise=0.01), table.model_copy(update={"samples": tuple(samples)}), 0)
    assert found.predictor.within_10 > 0.9


def test_only_the_reference_is_used_unless_more_is_asked_for():
    table = table_of("new", costs_of(3))
    damaged = tuple(
        sample if index in table.reference else Sample(layers=sample.layers, seconds=sample.seconds * 3)
        for index, sample in enumerate(table.samples)
    )
    found = evaluate(known(0, 1, 2, 4, 6), table.model_copy(update={"samples": damaged}), 0)
    assert found.predictor.median_error == pytest.approx(2 / 3, rel=0.02), "predicted as if nothing had changed"
    assert evaluate(known(0, 1, 2), table, 8).used == 18


def test_nothing_left_to_judge_by_is_said():
    with pytest.raises(PlanError, match="26 samples beside its reference; 26 of them are to be used"):
        evaluate(known(0, 1), table_of("new", costs_of(3)), 26)


def test_a_device_of_another_model_is_refused():
    with pytest.raises(PlanError, match='the table of new has model "other"; the known devices have "chain"'):
        evaluate(known(0, 1), table_of("new", costs_of(3), model="other"), 0)


def test_sub_models_that_no_table_has_are_predicted_from_their_layers():
    everything = table_of("new", costs_of(3))
    sparse = {
        f"d{kind}": table_of(f"d{kind}", costs_of(kind)).model_copy(
            update={"samples": table.samples[:-6], "reference": tuple(range(10))}
        )
        for kind in (0, 1, 2, 4)
        for table in [table_of(f"d{kind}", costs_of(kind))]
    }
    found = evaluate(known_devices(sparse), everything, 0)
    assert found.predictor.within_10 > 0.9


@pytest.mark.filterwarnings("error::RuntimeWarning")
@settings(max_examples=examples(40), deadline=None)
@given(
    seconds=st.lists(st.floats(1e-9, 1e6), min_size=108, max_size=108),
    more=st.integers(0, 20),
)
def test_whatever_times_devices_have_predictions_are_finite(seconds, more):
    first, second, unseen = (with_times(name, seconds[36 * index :]) for index, name in enumerate(("a", "b", "new")))
    found = evaluate(known_devices({"a": first, "b": second}), unseen, more)
    assert np.isfinite(found.predictor.worst_error)


def with_times(name, seconds):
    table = table_of(name, costs_of(1))
    samples = tuple(
        Sample(layers=sample.layers, seconds=time) for sample, time in zip(table.samples, seconds, strict=False)
    )
    return table.model_copy(update={"samples": samples})


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Return a function that predicts an unseen device by others, and returns its exit code and its output on both streams."""

    def run(*more, kinds=(0, 1, 2, 4)):
        tables = [str(write_table(tmp_path, table_of(f"d{kind}", costs_of(kind)))) for kind in kinds]
        unseen = str(write_table(tmp_path, table_of("new", costs_of(3))))
        known = [part for table in tables for part in ("--known", table)]
        monkeypatch.setattr(sys, "argv", ["prediction", *known, "--unseen", unseen, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


def test_an_evaluation_for_a_program_says_how_good_the_predictor_is(said):
    code, out, _ = said("--samples", "8", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["device"], found["used"], found["judged"]) == ("new", 18, 18)
    assert found["predictor"]["within_5"] == 1.0
    assert found["predictor"].keys() == {"within_5", "within_10", "median_error", "worst_error"}


def test_an_evaluation_for_a_person_is_a_table(said):
    code, shown, _ = said()
    assert code == 0
    assert "new: 26 sub-models predicted from 10" in shown
    for column in ("within 5 %", "within 10 %", "median error", "worst error", "100.0 %"):
        assert column in shown


def test_one_table_teaches_nothing(said):
    code, out, err = said(kinds=(0,))
    assert (code, out, err.count("\n")) == (ExitCode.PLAN, "", 1)
    assert "2 devices or more" in err
