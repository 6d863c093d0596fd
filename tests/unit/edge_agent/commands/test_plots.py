"""The pictures that `simulate` and `timeline` draw: whole, explained, and drawn by packages that a user can install."""

import shlex
import sys
import tomllib

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from edge_agent.commands.timeline_plot import draw
from edge_agent.main import app
from edge_agent.observability.timeline_window import choose_window
from shared.errors import PlanError
from tests.conftest import ROOT
from tests.support.pages import blocks
from tests.unit.edge_agent.observability.test_lanes import chain_trace
from tests.unit.edge_agent.observability.test_timeline import EQUAL, pipeline, window_of


@pytest.fixture
def drawn(monkeypatch):
    """Return the written figures, each laid out as in its file."""
    figures = []
    save = Figure.savefig

    def kept(figure, *arguments, **options):
        save(figure, *arguments, **options)
        figure.draw_without_rendering()  # From now on it measures at its own resolution, no longer at the file's.
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", kept)
    return figures


def simulate(profile, *arguments):
    done = CliRunner().invoke(app, ["simulate", f"--profile={profile}", *arguments])
    if done.exception is not None:
        raise done.exception
    return done


def assert_nothing_is_cut_off(figure):
    whole = figure.bbox
    texts = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    for axes in figure.axes:
        low, high = sorted(axes.get_ylim())
        shown = [label for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
        texts += [*shown, *axes.texts]
    for text in texts:
        if text.get_text():
            box = text.get_window_extent()
            assert whole.x0 <= box.x0 < box.x1 <= whole.x1, text
            assert whole.y0 <= box.y0 < box.y1 <= whole.y1, text


def test_a_simulated_run_has_whole_labels_a_legend_beside_its_lines_and_whole_numbers(profile_path, tmp_path, drawn):
    trace = ROOT / "edge_agent" / "demo" / "uplink.csv"
    simulate(profile_path, f"--trace={trace}", "--downlink=50mbit", f"--png={tmp_path / 'run.png'}")
    (figure,) = drawn
    assert_nothing_is_cut_off(figure)
    rates, cut, bits = figure.axes
    legend = rates.get_legend().get_window_extent()
    assert legend.x0 >= rates.get_window_extent().x1, "beside the lines"
    assert legend.x1 <= figure.bbox.x1
    for axes in (cut, bits):
        low, high = axes.get_ylim()
        ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
        assert ticks
        assert all(tick == int(tick) for tick in ticks)


def test_a_time_line_explains_its_hatching(tmp_path, drawn):
    draw(window_of(pipeline(EQUAL, 2, 30), 12), tmp_path / "picture.png")
    (figure,) = drawn
    (legend,) = figure.legends
    explained = {
        text.get_text(): patch.get_hatch() for text, patch in zip(legend.texts, legend.get_patches(), strict=True)
    }
    assert explained["hatched: backward and update on the edge"] is not None
    box = legend.get_window_extent()
    assert all(box.y1 <= axes.get_window_extent().y0 for axes in figure.axes), "below the lanes"
    hatched = [bar for bar in figure.axes[0].patches if bar.get_hatch()]
    assert len(hatched) == len(figure.axes[0].patches) // 5, "one of the five bars of a step"


def test_a_time_line_of_a_chain_says_what_pale_bars_and_rates_are_and_cuts_nothing_off(tmp_path, drawn):
    draw(choose_window(chain_trace(tmp_path), 4), tmp_path / "picture.png")
    (figure,) = drawn
    assert_nothing_is_cut_off(figure)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()][-3:] == [
        "near → far",
        "far compute, by its reports",
        "far → near",
    ]
    assert "7.0 Mbit/s" in {text.get_text() for text in axes.texts}
    explained = {text.get_text() for text in figure.legends[0].texts}
    assert "pale: as long as the trainer reports; when exactly is not known" in explained
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1


def test_the_packages_that_draw_can_be_installed_by_a_user(profile_path, tmp_path, monkeypatch):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(requirement.startswith("matplotlib") for requirement in extras["plots"])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    trace = ROOT / "edge_agent" / "demo" / "uplink.csv"
    with pytest.raises(PlanError, match=r"--png needs matplotlib, .*: pip install 'isthmus\[plots\]'"):
        simulate(profile_path, f"--trace={trace}", f"--png={tmp_path / 'run.png'}")


@pytest.mark.slow
def test_the_readmes_simulation_works_from_a_clone(profile_path, tmp_path, monkeypatch):
    (command,) = (
        command
        for block in blocks("../README.md")
        for command in block.commands
        if command.startswith("edge-agent simulate")
    )
    monkeypatch.chdir(ROOT)
    arguments = [
        {"profile.json": str(profile_path), "run.png": str(tmp_path / "run.png")}.get(word, word)
        for word in shlex.split(command)
    ]
    done = CliRunner().invoke(app, arguments[1:])
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "run.png").stat().st_size > 1000
