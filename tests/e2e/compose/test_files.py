"""compose.yaml and its neighbours agree with each other and with the code; needs no docker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from services.console.cli import SERVICES

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


def started(service: dict[str, Any]) -> str:
    command = service.get("command", [])
    return str(command[1]) if command[:1] == ["run"] else ""


def test_compose_starts_every_service_but_the_one_that_guards_a_bus_with_accounts() -> None:
    assert {started(service) for service in COMPOSE.values()} - {""} == set(SERVICES) - {"authcallout"}


def test_prometheus_asks_every_service_that_has_metrics() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for each in job["static_configs"] for target in each["targets"]}
    # The simulator serves the API of a cluster, not ours.
    told = {name for name, service in COMPOSE.items() if started(service) not in ("", "simulator")}
    assert targets == {f"{name}:9090" for name in told}


def test_the_story_waits_for_every_service_to_be_ready() -> None:
    told = {name for name, service in COMPOSE.items() if started(service) not in ("", "simulator")}
    waits = COMPOSE["story"]["depends_on"]
    assert set(waits) == told
    assert {each["condition"] for each in waits.values()} == {"service_healthy"}
    assert all("healthcheck" in COMPOSE[name] for name in told)


def test_ports_are_published_on_this_machine_only() -> None:
    ports = [port for service in COMPOSE.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_image_name_holds_a_registry_host() -> None:
    names = [service["image"] for service in COMPOSE.values() if "image" in service]
    names += re.findall(r"^(?:FROM|ARG BASE=)\s*(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    defaults = [re.sub(r"\$\{\w+(?::-)?([^}]*)\}", r"\1", name) for name in names]
    assert [name for name in defaults if "/" in name and re.search(r"[.:]", name.partition("/")[0])] == []
