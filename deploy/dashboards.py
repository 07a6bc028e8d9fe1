"""Grafana dashboards, made from the few lines that say what each panel shows.

python -m deploy.dashboards --check      are the files as said here? (CI)
python -m deploy.dashboards --write      make them so
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy import generated

DIRECTORY = Path(__file__).parent / "components" / "monitoring" / "dashboards"

_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph.

    Attributes:
        show: PromQL by legend; a legend may name labels, `{{phase}}`.
        unit: Grafana's name of the unit.
        stacked: the series add up to something.
    """

    title: str
    show: dict[str, str]
    unit: str = "short"
    stacked: bool = False


def _rate(metric: str, by: str, selector: str = "") -> dict[str, str]:
    legend = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return {legend: f"sum by ({by}) (rate({metric}{selector}[$__rate_interval]))"}


def _quantiles(metric: str, by: str, selector: str = "") -> dict[str, str]:
    buckets = f"sum by (le, {by}) (rate({metric}_bucket{selector}[$__rate_interval]))"
    return {f"p{round(100 * at)} {{{{{by}}}}}": f"histogram_quantile({at}, {buckets})" for at in (0.5, 0.99)}


DASHBOARDS: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "fleet": (
        "mediafleet: fleet",
        (
            Panel("Devices by phase", {"{{phase}}": "sum by (phase) (mediafleet_devices)"}, stacked=True),
            Panel(
                "Devices by verdict", {"{{verdict}}": "sum by (verdict) (mediafleet_devices)"}, stacked=True
            ),
            Panel("Devices by vendor", {"{{vendor}}": "sum by (vendor) (mediafleet_devices)"}, stacked=True),
            Panel(
                "Out of service",
                {
                    "share": 'sum(mediafleet_devices{phase!~"Healthy|Suspect|Probation"})'
                    " / sum(mediafleet_devices)"
                },
                "percentunit",
            ),
            Panel("Evidence", _rate("mediafleet_evidence_total", "class_"), "cps"),
            Panel(
                "Vendor tools without an answer", _rate("mediafleet_tool_silent_total", "tool, answer"), "cps"
            ),
            Panel(
                "Nodes whose agents answer",
                {"{{app}}": 'count by (app) (up{app=~"discovery|bridge"} == 1)'},
            ),
            Panel(
                "Resources the kubelets offer",
                {"{{resource}}": "sum by (resource) (mediafleet_bridge_registered)"},
            ),
            Panel(
                "Registrations with kubelets",
                _rate("mediafleet_bridge_registrations_total", "resource"),
                "cps",
            ),
            Panel("Plugins lost", _rate("mediafleet_bridge_losses_total", "resource, why"), "cps"),
            Panel(
                "Allocations", {"{{state}}": "sum by (state) (mediafleet_bridge_allocations)"}, stacked=True
            ),
            Panel("Allocations refused", _rate("mediafleet_bridge_refusals_total", "resource"), "cps"),
            Panel(
                "Not resolved on nodes",
                {
                    "holders without a name": "sum(mediafleet_bridge_unresolved)",
                    "fences open": "sum(mediafleet_bridge_fences_open)",
                    "files that cannot be read": "sum(mediafleet_discovery_problems)",
                },
            ),
            Panel(
                "Not believed",
                {
                    "figures of tools": "sum(rate(mediafleet_capture_doubts_total[$__rate_interval]))",
                    "lines about unknown devices": "sum(rate(mediafleet_kernel_lines_foreign_total"
                    "[$__rate_interval]))",
                },
                "cps",
            ),
            Panel(
                "Journals",
                {
                    "lost": "sum(increase(mediafleet_journal_lost_total[1h]))",
                    "refused": "sum(increase(mediafleet_journal_rejected_total[1h]))",
                    "unreadable": "sum(increase(mediafleet_journal_unreadable_total[1h]))",
                },
            ),
        ),
    ),
    "cases": (
        "mediafleet: cases",
        (
            Panel(
                "Open cases",
                {"{{domain}}": "sum by (domain) (mediafleet_decider_open_cases)"},
                stacked=True,
            ),
            Panel(
                "Remediation, facts",
                _rate("mediafleet_decider_facts_total", "fact", '{domain="remediation"}'),
                "cps",
            ),
            Panel(
                "Devices, facts", _rate("mediafleet_decider_facts_total", "fact", '{domain="device"}'), "cps"
            ),
            Panel(
                "Effects by how they ended", _rate("mediafleet_decider_effects_total", "domain, ended"), "cps"
            ),
            Panel("Deciding raised", _rate("mediafleet_decider_failures_total", "domain"), "cps"),
            Panel("Another was first", _rate("mediafleet_decider_conflicts_total", "domain"), "cps"),
            Panel("From cause to rest", _quantiles("mediafleet_decider_step_seconds", "domain"), "s"),
            Panel(
                "Fences answered",
                {"fences": "sum(rate(mediafleet_bridge_fences_total[$__rate_interval]))"},
                "cps",
            ),
            Panel("Open alerts", {"{{rule}}": "sum by (rule) (mediafleet_alerts)"}, stacked=True),
            Panel(
                "Kubernetes Events not written",
                {"remediation": "sum(increase(mediafleet_remediation_kubernetes_events_lost_total[1h]))"},
            ),
            Panel(
                "Policies refused",
                {
                    "{{service}}": "sum by (service) (increase(mediafleet_policies_rejected_total[1h]))",
                    "{{kind}}": "sum by (kind) (increase(mediafleet_policy_resources_refused_total[1h]))",
                    "alert rules": "max(mediafleet_alerting_rules_broken)",
                },
            ),
            Panel("Active replica", {"{{service}} {{pod}}": "mediafleet_active == 1"}),
        ),
    ),
    "sla": (
        "mediafleet: SLA",
        (
            Panel(
                "Breaches open",
                {"{{domain}}": 'sum by (domain) (mediafleet_decider_open_cases{domain="sla"})'},
            ),
            Panel(
                "What the guardian says",
                _rate("mediafleet_decider_facts_total", "fact", '{domain="sla"}'),
                "cps",
            ),
            Panel("Evictions by outcome", _rate("mediafleet_guardian_evictions_total", "outcome"), "cps"),
            Panel(
                "What the autoscaler says",
                _rate("mediafleet_decider_facts_total", "fact", '{domain="scale"}'),
                "cps",
            ),
            Panel(
                "From sample to rest",
                _quantiles("mediafleet_decider_step_seconds", "domain", '{domain=~"sla|scale"}'),
                "s",
            ),
            Panel(
                "Samples heard",
                _rate("mediafleet_bus_handler_seconds_count", "service", '{domain="sample"}'),
                "cps",
            ),
            Panel(
                "Samples waiting",
                {"{{service}}": 'max by (service) (mediafleet_bus_lag_messages{domain="sample"})'},
            ),
            Panel(
                "Alerts about it",
                {
                    "{{rule}}": "sum by (rule) (mediafleet_alerts"
                    '{rule=~"breach-.*|circuit-opened|measurements-suspect|scale-refused"})'
                },
            ),
        ),
    ),
    "bus": (
        "mediafleet: bus and processes",
        (
            Panel("Connected", {"{{service}}": "sum by (service) (mediafleet_bus_connected)"}),
            Panel("Ready", {"{{service}}": "sum by (service) (mediafleet_ready)"}),
            Panel(
                "Waiting at the server",
                {"{{service}} {{domain}}": "max by (service, domain) (mediafleet_bus_lag_messages)"},
            ),
            Panel(
                "Held by services",
                {"{{service}} {{domain}}": "sum by (service, domain) (mediafleet_bus_held_messages)"},
            ),
            Panel(
                "Lanes",
                {
                    "deepest of {{service}}": "max by (service) (mediafleet_bus_lane_depth_messages)",
                    "long ones of {{service}}": "max by (service) (mediafleet_bus_lane_alarms)",
                },
            ),
            Panel("Handlers", _quantiles("mediafleet_bus_handler_seconds", "service"), "s"),
            Panel("Published", _rate("mediafleet_bus_published_total", "service, domain"), "cps"),
            Panel("Sent again", _rate("mediafleet_bus_publish_retries_total", "service, domain"), "cps"),
            Panel("Tried again", _rate("mediafleet_bus_retries_total", "service, domain"), "cps"),
            Panel("Heard again", _rate("mediafleet_bus_redelivered_total", "service, domain"), "cps"),
            Panel(
                "Appends that came second", _rate("mediafleet_bus_conflicts_total", "service, domain"), "cps"
            ),
            Panel("Skipped, no envelope", _rate("mediafleet_bus_skipped_total", "service, domain"), "cps"),
            Panel(
                "Dead letters",
                {
                    "{{service}} {{domain}}": "sum by (service, domain) (increase"
                    "(mediafleet_bus_dead_letters_total[1h]))",
                    "not kept, {{service}}": "sum by (service) (increase"
                    "(mediafleet_bus_dead_letters_refused_total[1h]))",
                },
            ),
            Panel(
                "Connection errors", _rate("mediafleet_bus_connection_errors_total", "service, kind"), "cps"
            ),
            Panel("Reconnects", _rate("mediafleet_bus_reconnects_total", "service"), "cps"),
            Panel(
                "Audit behind",
                {
                    "{{source_name}}": "max by (source_name) (jetstream_stream_source_lag"
                    '{stream_name="FLEET_AUDIT"})'
                },
            ),
            Panel("Connections judged", _rate("mediafleet_authcallout_answers_total", "outcome"), "cps"),
            Panel(
                "Memory",
                {"{{app}}": 'max by (app) (process_resident_memory_bytes{namespace="mediafleet"})'},
                "bytes",
            ),
            Panel(
                "CPU",
                {
                    "{{app}}": "max by (app) (rate(process_cpu_seconds_total"
                    '{namespace="mediafleet"}[$__rate_interval]))'
                },
                "short",
            ),
        ),
    ),
}


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana reads it."""
    title, panels = DASHBOARDS[name]
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "uid": f"mediafleet-{name}",
        "title": title,
        "tags": ["mediafleet"],
        "editable": True,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
            ]
        },
        "panels": [_panel(number, panel, source) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    row, column = divmod(number, _ACROSS)
    custom = {
        "fillOpacity": 20 if panel.stacked else 0,
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(panel.show.items())
        ],
    }


def text(name: str) -> str:
    """The file of a dashboard."""
    return json.dumps(dashboard(name), indent=2) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the files; 1 when one differs."""
    wanted = {DIRECTORY / f"{name}.json": text(name) for name in DASHBOARDS}
    return generated.run("deploy.dashboards", __doc__, wanted, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
