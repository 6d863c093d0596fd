"""The rules for Prometheus: they are valid, and each alert is tested firing and silent, and explained on the page."""

import re
import shutil
import subprocess

import pytest
import yaml

from tests.conftest import ROOT

HERE = ROOT / "deploy" / "prometheus"

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> dict[str, str]:
    """Return the severity of each alert by name."""
    groups = yaml.safe_load((HERE / "rules" / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule["labels"]["severity"] for group in groups for rule in group["rules"]}


def recorded() -> set[str]:
    groups = yaml.safe_load((HERE / "rules" / "recording.yml").read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"]}


def unit_tests() -> list[dict]:
    files = sorted((HERE / "tests").glob("*.yml"))
    return [test for file in files for test in yaml.safe_load(file.read_text())["tests"]]


@needs_promtool
def test_the_configuration_is_valid():
    promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_the_rules_do_what_their_tests_say():
    promtool("test", "rules", *(str(file) for file in sorted((HERE / "tests").glob("*.yml"))))


def test_each_alert_is_tested_firing_and_silent():
    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in unit_tests()
        for case in test.get("alert_rule_test", [])
    ]
    assert set(cases) == {(name, fires) for name in alerts() for fires in (True, False)}


def test_each_recording_rule_is_tested():
    asked = " ".join(case["expr"] for test in unit_tests() for case in test.get("promql_expr_test", []))
    assert not [name for name in recorded() if name not in asked]


def test_the_page_says_what_to_do_at_each_alert():
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert dict(re.findall(r"\| `(Isthmus\w+)` \| (\w+) \|", page)) == alerts()
