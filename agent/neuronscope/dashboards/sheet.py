"""One Grafana dashboard while it is laid out: panels in rows of 24 columns, each with what they all have.

All: the chosen data source, "No traffic" instead of an empty panel, and links that carry time and filters to
the traces of the service and to the command that opens its recordings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import prometheus as queries
from grafana_foundation_sdk.builders import text as texts
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models import prometheus as formats
from grafana_foundation_sdk.models import text as text_options

from neuronscope.dashboards.promql import INSTANCE, JOB, Source, label_values
from neuronscope.dashboards.thresholds import Links
from neuronscope.signals import names

COLUMNS: Final = 24
DATASOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
SOURCE: Final = Source(matchers=('job=~"$service"', 'instance=~"$instance"'))
NO_TRAFFIC: Final = "No traffic"
RECORDS: Final = "neuronscope-service"  # the dashboard with the commands,
COMMANDS: Final = 1_000  # and its panel with them
Color = Literal["green", "yellow", "orange", "red", "blue", "text"]
Steps = Sequence[tuple[float | None, Color]]
GREEN: Final[Steps] = ((None, "green"),)


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and how its series are called."""

    expr: str
    legend: str = ""
    instant: bool = False
    exemplars: bool = False


class Sheet:
    """Takes panels from left to right and top to bottom.

    Args:
        slug: the last part of the dashboard's uid.
    """

    def __init__(self, slug: str, title: str, description: str, links: Links) -> None:
        self._links = links
        self._builder = (
            dashboard.Dashboard(f"NeuronScope / {title}")
            .uid(f"neuronscope-{slug}")
            .description(description)
            .tags(["neuronscope"])
            .time("now-1h", "now")
            .refresh("30s")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .editable()
        )
        self._x = self._y = self._height = self._panels = 0
        self._common_variables(links)
        self._builder.link(
            dashboard.DashboardLink("NeuronScope")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["neuronscope"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )

    # --- variables -----------------------------------------------------------------------------------
    def _common_variables(self, links: Links) -> None:
        self._builder.with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        self.variable("service", "Service", label_values(names.OVERHEAD_BUDGET, JOB))
        self.variable(
            "instance", "Instance", label_values(names.OVERHEAD_BUDGET, INSTANCE, where='{job=~"$service"}')
        )
        for name, value in (("jaeger", links.jaeger), ("recordings", links.recordings)):
            self._builder.with_variable(
                dashboard.TextBoxVariable(name)
                .default_value(value)
                .current(model.VariableOption(text=value, value=value))
                .options([model.VariableOption(selected=True, text=value, value=value)])
                .hide(model.VariableHide.HIDE_VARIABLE)
            )

    def variable(self, name: str, label: str, query: str) -> None:
        """A variable whose values come from Prometheus; several may be chosen, or all."""
        self._builder.with_variable(
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(DATASOURCE)
            .query({"qryType": 1, "query": query, "refId": name})
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
        )

    def text_variable(self, name: str, label: str, value: str = "") -> None:
        """A variable that people type."""
        self._builder.with_variable(
            dashboard.TextBoxVariable(name)
            .label(label)
            .default_value(value)
            .current(model.VariableOption(text=value, value=value))
            .options([model.VariableOption(selected=True, text=value, value=value)])
        )

    # --- layout --------------------------------------------------------------------------------------
    def row(self, title: str) -> None:
        """Begin a row with a heading."""
        self._y += self._height
        self._x = self._height = 0
        self._builder.with_row(
            dashboard.Row(title).id(self._next_id()).grid_pos(model.GridPos(h=1, w=COLUMNS, x=0, y=self._y))
        )
        self._y += 1

    def _place(self, width: int, height: int) -> model.GridPos:
        if self._x + width > COLUMNS:
            self._x, self._y, self._height = 0, self._y + self._height, 0
        place = model.GridPos(h=height, w=width, x=self._x, y=self._y)
        self._x += width
        self._height = max(self._height, height)
        return place

    def _next_id(self) -> int:
        self._panels += 1
        return self._panels

    def _add(
        self,
        panel: Any,
        title: str,
        told: str,
        found: Iterable[Query],
        unit: str,
        size: tuple[int, int],
        *,
        table_format: bool = False,
        heat_map: bool = False,
        linked: bool = True,
    ) -> None:
        panel = panel.id(self._next_id()).title(title).description(told).grid_pos(self._place(*size))
        panel = panel.datasource(DATASOURCE)
        for number, query in enumerate(found):
            panel = panel.with_target(_target(query, chr(ord("A") + number), table_format, heat_map))
        if unit:
            panel = panel.unit(unit)
        panel = panel.no_value(NO_TRAFFIC)
        if linked:
            panel = panel.data_links(self._data_links())
        self._builder.with_panel(panel)

    def _data_links(self) -> list[Any]:
        return [
            dashboard.DashboardLink("Traces of this time in Jaeger")
            .type(model.DashboardLinkType.LINK)
            .url("${jaeger}/search?service=${service:raw}&start=${__from}000&end=${__to}000&limit=50")
            .target_blank(True),
            dashboard.DashboardLink("Commands for the .nsz recording of this time")
            .type(model.DashboardLinkType.LINK)
            .url(
                f"/d/{RECORDS}?var-service=${{service:raw}}&from=${{__from}}&to=${{__to}}&viewPanel={COMMANDS}"
            ),
        ]

    # --- panels --------------------------------------------------------------------------------------
    def stat(
        self, title: str, told: str, query: Query, unit: str, steps: Steps = GREEN, *, width: int = 4,
        height: int = 4, decimals: int | None = None,
    ) -> None:  # fmt: skip
        """One number, with its history behind it."""
        panel = (
            stat.Panel()
            .graph_mode(options.BigValueGraphMode.AREA)
            .color_mode(options.BigValueColorMode.VALUE)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            .thresholds(_steps(steps))
            .mappings([_nothing()])
        )
        if decimals is not None:
            panel = panel.decimals(decimals)
        self._add(panel, title, told, (query,), unit, (width, height))

    def lines(
        self, title: str, told: str, found: Sequence[Query], unit: str, *, width: int = 12, height: int = 8,
        stacked: bool = False, limit: float | None = None, top: float | None = None, bottom: float | None = 0,
    ) -> None:  # fmt: skip
        """Lines over time; `limit` is drawn as a threshold."""
        panel = (
            timeseries.Panel()
            .draw_style(options.GraphDrawStyle.LINE)
            .line_width(1)
            .fill_opacity(30 if stacked else 8)
            .show_points(options.VisibilityMode.NEVER)
            .legend(
                common.VizLegendOptions()
                .display_mode(options.LegendDisplayMode.TABLE)
                .placement(options.LegendPlacement.BOTTOM)
                .show_legend(True)
                .calcs(["lastNotNull", "max"])
            )
            .tooltip(
                common.VizTooltipOptions()
                .mode(options.TooltipDisplayMode.MULTI)
                .sort(options.SortOrder.DESCENDING)
            )
        )
        if bottom is not None:
            panel = panel.min(bottom)
        if top is not None:
            panel = panel.max(top)
        if stacked:
            panel = panel.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL).group("A"))
        if limit is not None:
            panel = panel.thresholds(_steps(((None, "text"), (limit, "red")))).thresholds_style(
                common.GraphThresholdsStyleConfig().mode(options.GraphTresholdsStyleMode.DASHED)
            )
        self._add(panel, title, told, found, unit, (width, height))

    def bars(
        self, title: str, told: str, found: Sequence[Query], unit: str, *, width: int = 12, height: int = 8,
        steps: Steps = GREEN,
    ) -> None:  # fmt: skip
        """A bar for each series' latest value."""
        panel = (
            bargauge.Panel()
            .orientation(options.VizOrientation.HORIZONTAL)
            .display_mode(options.BarGaugeDisplayMode.BASIC)
            .value_mode(options.BarGaugeValueMode.TEXT)
            .show_unfilled(True)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            .thresholds(_steps(steps))
            .min(0)
        )
        self._add(panel, title, told, found, unit, (width, height))

    def heat(
        self, title: str, told: str, query: Query, unit: str, *, width: int = 12, height: int = 8,
        buckets: bool = True, scheme: str = "Spectral",
    ) -> None:  # fmt: skip
        """A heat map: of a histogram's buckets, or of one row for each series."""
        panel = (
            heatmap.Panel()
            .calculate(False)
            .color(
                heatmap.HeatmapColorOptions()
                .mode(heat.HeatmapColorMode.SCHEME)
                .scheme(scheme)
                .steps(64)
                .reverse(True)
            )
            .y_axis(
                heatmap.YAxisConfig().unit(unit if buckets else "").axis_placement(options.AxisPlacement.LEFT)
            )
            .cell_gap(1)
            .scale_distribution(common.ScaleDistributionConfig().type(options.ScaleDistribution.LINEAR))
            .show_legend()
            .show_tooltip()
        )
        if not buckets:
            panel = panel.rows_frame(heatmap.RowsHeatmapOptions().layout(options.HeatmapCellLayout.UNKNOWN))
        # A cell stands for events or a value; the unit of the axis is not that of the cells.
        self._add(
            panel,
            title,
            told,
            (query,),
            "" if buckets else unit,
            (width, height),
            heat_map=True,
            linked=False,
        )

    def table(
        self, title: str, told: str, query: Query, unit: str, columns: dict[str, str], *, width: int = 12,
        height: int = 8,
    ) -> None:  # fmt: skip
        """The latest value of every series; `columns` are their heads."""
        hidden = ["Time", *(["job"] if "job" not in columns else [])]
        panel = (
            table.Panel()
            .show_header(True)
            .cell_height(options.TableCellHeight.SM)
            .with_transformation(
                model.DataTransformerConfig(
                    id_val="organize",
                    options={
                        "excludeByName": dict.fromkeys(hidden, True),
                        "renameByName": columns,
                    },
                )
            )
        )
        query = Query(query.expr, query.legend, instant=True)
        self._add(panel, title, told, (query,), unit, (width, height), table_format=True)

    def states(
        self, title: str, told: str, found: Sequence[Query], words: dict[str, tuple[str, Color]], *,
        width: int = 12, height: int = 8,
    ) -> None:  # fmt: skip
        """Which state held when."""
        mapping = model.ValueMap(
            options={
                value: model.ValueMappingResult(text=text, color=color, index=n)
                for n, (value, (text, color)) in enumerate(words.items())
            }
        )
        panel = (
            statetimeline.Panel()
            .merge_values(True)
            .show_value(options.VisibilityMode.NEVER)
            .fill_opacity(70)
            .mappings([mapping, _nothing()])
        )
        self._add(panel, title, told, found, "", (width, height))

    def text(
        self, title: str, content: str, *, width: int = 24, height: int = 6, number: int | None = None
    ) -> None:
        """Markdown."""
        panel = texts.Panel().mode(text_options.TextMode.MARKDOWN).content(content)
        panel = panel.id(number or self._next_id()).title(title).grid_pos(self._place(width, height))
        self._builder.with_panel(panel)

    # -------------------------------------------------------------------------------------------------
    def build(self) -> str:
        """The dashboard as JSON."""
        built: Any = json.loads(json.dumps(self._builder.build(), cls=JSONEncoder))
        tidy(built)
        return json.dumps(built, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def tidy(built: Any) -> None:
    """Take out what the SDK writes and the schema of Grafana 13 does not have (11 and 12 do without)."""
    built.pop("style", None)
    for variable in built["templating"]["list"]:
        for key in ("auto", "auto_count", "auto_min", "id"):  # the first three are of intervals
            variable.pop(key, None)
    for panel in built["panels"]:
        if panel["type"] == "heatmap":
            panel["options"].pop("tooltip", None)
        if panel["type"] == "table":
            panel["options"].pop("footer", None)


def _target(query: Query, ref: str, table_format: bool, heat_map: bool) -> Any:
    target = queries.Dataquery().expr(query.expr).ref_id(ref).datasource(DATASOURCE).exemplar(query.exemplars)
    if query.legend:
        target = target.legend_format(query.legend)
    target = target.instant() if query.instant else target.range()
    if table_format:
        target = target.format(formats.PromQueryFormat.TABLE)
    elif heat_map and not query.legend:
        target = target.format(formats.PromQueryFormat.HEATMAP)
    else:
        target = target.format(formats.PromQueryFormat.TIME_SERIES)
    return target


def _steps(steps: Steps) -> Any:
    return (
        dashboard.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=cast(float, value), color=color) for value, color in steps])
    )


def _nothing() -> model.SpecialValueMap:
    return model.SpecialValueMap(
        options=model.DashboardSpecialValueMapOptions(
            match=model.SpecialValueMatch.NULL_AND_NAN,
            result=model.ValueMappingResult(text=NO_TRAFFIC, color="text"),
        )
    )
