"""A dashboard's questions as Grafana would put them to Prometheus: its variables filled in, over a stretch of time."""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RATE_INTERVAL_SCRAPES = 4
"""Value that Grafana gives $__rate_interval, in scrape intervals."""


@dataclass(frozen=True)
class Question:
    """One query of one panel, annotation or variable (`where`); name: what its answers are called."""

    where: str
    query: str
    name: str = ""
    instant: bool = False


@dataclass(frozen=True)
class Answer:
    """One series: its labels, and values by time in seconds."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels but the headings, in order."""
    for panel in board["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panels({"panels": panel.get("panels", [])})


def panel_questions(panel: dict[str, Any], scrape_seconds: int) -> list[Question]:
    """List the questions of a panel."""
    return [
        Question(
            panel["title"],
            filled_in(target["expr"], scrape_seconds),
            target.get("legendFormat", ""),
            target.get("instant", False),
        )
        for target in panel["targets"]
    ]


def other_questions(board: dict[str, Any], scrape_seconds: int) -> Iterator[Question]:
    """Yield the questions of annotations and variables; of a variable, the series whose label it lists."""
    for annotation in board["annotations"]["list"]:
        yield Question(annotation["name"], filled_in(annotation["expr"], scrape_seconds))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            listed = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"])
            assert listed is not None
            yield Question(f"${variable['name']}", filled_in(listed[1], scrape_seconds))


def filled_in(query: str, scrape_seconds: int) -> str:
    """The query with every variable at its All."""
    query = query.replace("$__rate_interval", f"{RATE_INTERVAL_SCRAPES * scrape_seconds}s")
    return re.sub(r"\$(instance|session)\b", ".+", query)


def load(path: Path) -> dict[str, Any]:
    """A dashboard's JSON."""
    return json.loads(path.read_text())  # type: ignore[no-any-return]


class Prometheus:
    """A Prometheus that can be asked."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, question: Question, start_seconds: float, end_seconds: float, step_seconds: float) -> list[Answer]:
        """The answer between two times; of an instant question, at the end. Raises URLError where it is refused."""
        call = {"query": question.query}
        if question.instant:
            answer = self._get("query", {**call, "time": f"{end_seconds}"})
            return [_answer(series["metric"], [series["value"]]) for series in answer["result"]]
        span = {"start": f"{start_seconds}", "end": f"{end_seconds}", "step": f"{step_seconds}"}
        answer = self._get("query_range", {**call, **span})
        return [_answer(series["metric"], series["values"]) for series in answer["result"]]

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:
        encoded = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{encoded}", timeout=30) as response:
            return json.load(response)["data"]


def _answer(labels: dict[str, str], values: list[tuple[float, str]]) -> Answer:
    return Answer(labels, tuple((time, float(value)) for time, value in values))
