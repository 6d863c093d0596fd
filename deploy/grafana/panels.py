"""Panels of our dashboards: a panel is a title, a question to Prometheus for each of its curves, and a unit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grafana_foundation_sdk.builders import dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    ScaleDistributionConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    ScaleDistribution,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.promql import Side

Board: TypeAlias = Dashboard
Panels: TypeAlias = Sequence[timeseries.Panel | stat.Panel | heatmap.Panel]

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GRAPH_HEIGHT, FIGURE_HEIGHT = 7, 4


@dataclass(frozen=True)
class Curve:
    """One question, and what its answers are called; {{label}} stands for a label's value."""

    query: str
    name: str


def _target(curve: Curve, number: int = 0) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(curve.query).legend_format(curve.name).ref_id(chr(ord("A") + number))


def graph(title: str, description: str, unit: str, span: int, *curves: Curve, steps: bool = False) -> timeseries.Panel:
    """Curves over time from zero up. steps: of a setting, which jumps, rather than of a measurement."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(GRAPH_HEIGHT)
        .span(span)
        .draw_style(GraphDrawStyle.LINE)
        .line_interpolation(LineInterpolation.STEP_AFTER if steps else LineInterpolation.LINEAR)
        .line_width(2)
        .fill_opacity(8)
        .show_points(VisibilityMode.NEVER)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    for number, curve in enumerate(curves):
        panel = panel.with_target(_target(curve, number).range())
    return panel


def figure(title: str, description: str, unit: str, curve: Curve, span: int = 3) -> stat.Panel:
    """One figure as it stands now, for each instance."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .height(FIGURE_HEIGHT)
        .span(span)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
        .with_target(_target(curve).instant())
    )


def histogram(title: str, description: str, unit: str, span: int, query: str) -> heatmap.Panel:
    """Build a panel of the hits of each bucket over time. query: rates by `le`."""
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .height(GRAPH_HEIGHT)
        .span(span)
        .show_tooltip()
        .calculate(False)  # Prometheus has done that
        .scale_distribution(ScaleDistributionConfig().type(ScaleDistribution.LINEAR))
        .with_target(_target(Curve(query, "{{le}}")).range().format(PromQueryFormat.HEATMAP))
    )


def health(side: Side) -> Panels:
    """Build the panels of every process: errors, processor, memory, and a file of tokens that is in order or not."""
    errors, name = side.of("isthmus_errors_total"), "{{instance}}"
    failed = Curve(f"{errors} > 0 or sum by (instance) ({errors})", "{{code}} " + name)
    broken = Curve(side.of("isthmus_token_file_broken"), name)
    return [
        graph("Errors", "Calls that failed since the start, in all and by code.", "short", 6, failed, steps=True),
        graph("Processor", "Cores that are busy.", "short", 6, Curve(side.rate("process_cpu_seconds_total"), name)),
        graph("Memory", "Really held.", "bytes", 6, Curve(side.of("process_resident_memory_bytes"), name)),
        graph("Tokens broken", "1 while the file of tokens cannot be used.", "short", 6, broken, steps=True),
    ]


def label_variable(name: str, series: str, description: str) -> dashboard.QueryVariable:
    """The values that a label of some series has; all of them unless chosen. `series` may name other variables."""
    return (
        dashboard.QueryVariable(name)
        .label(name)
        .description(description)
        .datasource(SOURCE)
        .query(f"label_values({series}, {name})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def mark(name: str, query: str, colour: str) -> dashboard.AnnotationQuery:
    """A line through all panels wherever the query answers."""
    return dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(query)


def build_board(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[dashboard.QueryVariable],
    marks: Sequence[dashboard.AnnotationQuery],
    rows: Mapping[str, Panels],
) -> Board:
    """A dashboard of the last quarter of an hour: rows of panels under headings, in order."""
    board = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["isthmus"])
        .refresh("5s")
        .time("now-15m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in variables:
        board = board.with_variable(variable)
    for annotation in marks:
        board = board.annotation(annotation)
    for heading, panels in rows.items():
        board = board.with_row(dashboard.Row(heading))
        for panel in panels:
            board = board.with_panel(panel)
    return board.build()
