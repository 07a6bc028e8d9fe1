"""Alert rules and dashboards against the metrics that the code has, and runbooks against the rules."""

import ast
import functools
import importlib
import json
import re
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client import REGISTRY

from deploy import dashboards
from tests.unit.deploy.manifests import DEPLOY, ROOT, Json, build, named

MONITORING = DEPLOY / "components" / "monitoring"
RUNBOOKS = ROOT / "docs" / "runbooks-metrics.md"
TARGET = {"app", "container", "endpoint", "instance", "job", "namespace", "node", "pod"}
"""Labels that a scrape adds."""
FOREIGN = {
    "up": set(),  # Prometheus itself
    "jetstream_stream_source_lag": {
        "stream_name",
        "source_name",
    },  # prometheus-nats-exporter, collector/jsz.go
    "jetstream_stream_source_active_duration_ns": {"stream_name", "source_name"},
}
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "info": ("_info",),
}
KEYWORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool"}


def defining() -> Iterator[str]:
    """Modules of ours that make metrics."""
    for path in sorted((*(ROOT / "shared").rglob("*.py"), *(ROOT / "services").rglob("*.py"))):
        if "simulator" in path.parts or path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        imported = {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
        }
        if "prometheus_client" in imported:
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


@functools.cache
def metrics() -> dict[str, set[str]]:
    """Labels by every name that /metrics may show."""
    for module in defining():
        importlib.import_module(module)
    known = dict(FOREIGN)
    for collector, names in list(REGISTRY._collector_to_names.items()):
        # The handler times are a collector of their own, without a list of labels.
        labels = set(getattr(collector, "_labelnames", ("service", "domain"))) | {"le"}
        for name in names:
            known[name] = labels
    for family in REGISTRY.collect():
        for suffix in SUFFIXES.get(family.type, ("",)):
            known.setdefault(family.name + suffix, {"service", "domain", "le"})
    for name in [name for name in known if name.endswith("_info")]:
        known[name] = known[name] | {"service", "instance"}
    return known


def rules() -> list[Json]:
    parsed = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in parsed["spec"]["groups"] for rule in group["rules"]]


def bare(expression: str) -> str:
    """Without texts, selectors, ranges and label lists."""
    for pattern in (r'"[^"]*"', r"\{[^}]*\}", r"\[[^\]]*\]", r"\b(by|without|on|ignoring)\s*\([^)]*\)"):
        expression = re.sub(pattern, " ", expression)
    return expression


def metrics_in(expression: str) -> set[str]:
    words = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w)(?!\s*\()", bare(expression))
    return {word for word in words if word not in KEYWORDS and not re.fullmatch(r"e\d*", word)}


def labels_in(expression: str) -> set[str]:
    matched = re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    listed = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression)
    return {*matched, *(label.strip() for each in listed for label in each.split(",") if label.strip())}


def check(expression: str, known: dict[str, set[str]]) -> None:
    used = metrics_in(expression)
    assert used, expression
    assert used <= known.keys(), f"no such metric: {used - known.keys()}"
    labels = set.union(TARGET, *(known[name] for name in used))
    assert labels_in(expression) <= labels, f"no such label: {labels_in(expression) - labels}"


def test_expressions_are_taken_apart_rightly() -> None:
    text = 'sum by (pod) (rate(a_total{x="b_c"}[5m])) > 3e9 unless on (service) (d == 1)'
    assert metrics_in(text) == {"a_total", "d"}
    assert labels_in(text) == {"pod", "x", "service"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_a_rule_names_metrics_and_labels_that_exist(rule: Json) -> None:
    check(rule["expr"], metrics())


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_a_rule_has_a_severity_and_a_runbook_section(rule: Json) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / page == RUNBOOKS
    headings = re.findall(r"^## (.+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.strip().lower().replace(" ", "-") for heading in headings}
    labels = set(re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"]))
    assert labels <= labels_in(rule["expr"]) | TARGET | {"service"}


def test_every_runbook_section_belongs_to_a_rule() -> None:
    headings = re.findall(r"^## (.+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in rules())


def test_every_thing_that_events_cannot_tell_has_a_rule() -> None:
    said = {rule["alert"] for rule in rules()}
    assert said >= {
        "MediafleetBusLost",
        "MediafleetLag",
        "MediafleetAgentSilent",
        "MediafleetCaseStuck",
        "MediafleetAuditLags",
        "MediafleetNoActiveReplica",
        "MediafleetDeadLettersGrow",
    }


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_a_dashboard_shows_metrics_and_labels_that_exist(name: str) -> None:
    shown = json.loads((MONITORING / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    known = metrics()
    for panel in shown["panels"]:
        for target in panel["targets"]:
            check(target["expr"], known)
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert legend <= labels_in(target["expr"]) | TARGET | {"service"}


def test_the_dashboards_are_as_said_in_the_code() -> None:
    assert dashboards.main(["--check"]) == 0, "run `python -m deploy.dashboards --write`"


def test_a_dashboard_that_differs_is_named(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboards, "DIRECTORY", tmp_path)
    assert dashboards.main(["--check"]) == 1
    assert "fleet.json" in capsys.readouterr().err
    assert dashboards.main(["--write"]) == 0
    assert dashboards.main(["--check"]) == 0


def test_panels_do_not_overlap() -> None:
    for name in dashboards.DASHBOARDS:
        places = [
            (panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboards.dashboard(name)["panels"]
        ]
        assert len(places) == len(set(places))


def test_our_own_labels_win_over_those_of_the_scrape() -> None:
    monitor = named(build("overlays/production"), "ServiceMonitor", "mediafleet")["spec"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["honorLabels"] is True
    assert {each["targetLabel"] for each in endpoint["relabelings"]} == {"app", "node"}
    service = named(build("overlays/production"), "Service", "mediafleet-metrics")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
