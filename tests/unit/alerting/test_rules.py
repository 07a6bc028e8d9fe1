"""The rules file: what is refused, and what a rule makes of an event."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.alerting.rules import Condition, Rules, _rule, fill, load, reach
from services.alerting.service import heard
from shared.errors import BadInput
from shared.events import AnyEvent, Cause, event
from shared.events.device import DeviceRejected
from shared.events.parts import PodRef
from shared.events.remediation import DrainStuck
from shared.events.workload import Breached

AT = datetime(2026, 3, 1, tzinfo=UTC)
POD = PodRef(namespace="live", name="edge-1", uid="u1")
MINE = "mine: {fact: device.lost, severity: info, summary: s, runbook: r, who: w, "
GOOD = "{fact: device.lost, severity: info, summary: s, runbook: r, who: w}"


def stuck() -> AnyEvent:
    data = DrainStuck(epoch=2, evicted=(), left=(POD, POD))
    return event(data, ("n1", "d1"), cause=Cause("c"), source="/x", at=AT)


def rules_of(tmp_path: Path, text: str) -> Rules:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    return load(file)


def test_the_shipped_rules_are_good_and_name_their_runbooks() -> None:
    rules = load()
    assert len(rules.rules) >= 12
    root = Path(__file__).parents[3]
    for rule in rules.rules:
        page, _, section = rule.runbook.partition("#")
        assert f"## {section}\n" in (root / page).read_text(encoding="utf-8"), rule.name
    assert {payload.kind.name for payload in heard(rules)} >= rules.facts()


def test_a_file_of_ones_own_changes_adds_and_disables(tmp_path: Path) -> None:
    rules = rules_of(
        tmp_path, f"drain-stuck: {{severity: info}}\ndevice-lost: {{enabled: false}}\nmine: {GOOD}\n"
    )
    stuck_rule = rules.get("drain-stuck")
    assert stuck_rule is not None
    assert stuck_rule.severity == "info"
    assert stuck_rule.who == "platform"
    assert rules.get("device-lost") is None
    assert rules.get("mine") is not None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[1, 2]", "no mapping of rules"),
        ("a: 7", "no mapping of rules"),
        ("a: {b: [}", "no YAML"),
        ("mine: {fact: device.lost}", "mine.severity"),
        ("mine: {fact: device.lost, severity: loud, summary: s, runbook: r, who: w}", "mine.severity"),
        ("mine: {fact: device.exploded, severity: info, summary: s, runbook: r, who: w}", "device.exploded"),
        ("mine: {fact: device.lost, severity: info, summary: '{data.x}', runbook: r, who: w}", "'x'"),
        ("mine: {fact: device.lost, severity: info, summary: '{data}', runbook: r, who: w}", "leads nowhere"),
        ("mine: {fact: device.lost, severity: info, summary: '{', runbook: r, who: w}", "no template"),
        ("mine: {fact: device.lost, severity: info, summary: '{place!r}', runbook: r, who: w}", "plain"),
        (
            MINE + "resolved_by: [sla.restored]}",
            "something else",
        ),
        (
            MINE + "resolved_by: [device.registered], key: '{data.reason}'}",
            "has no field 'reason'",
        ),
        (
            MINE + "when: {data.nowhere: {is: 1}}}",
            "nowhere",
        ),
        (
            MINE + "resolved_by: [{fact: device.registered, when: {data.nowhere: {is: 1}}}]}",
            "nowhere",
        ),
    ],
)
def test_a_broken_rule_names_the_file_the_rule_and_the_field(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        rules_of(tmp_path, text)
    assert "rules.yaml" in str(caught.value)
    assert named in str(caught.value)


def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        load(tmp_path / "absent.yaml")


def test_templates_reach_into_models_dicts_and_lists() -> None:
    assert fill("{entity}@{place}: {data.left} {data.epoch}", stuck()) == "d1@n1: live/edge-1, live/edge-1 2"
    assert fill("{case} {about} {fact} {data.nothing}", stuck()) == "n1/d1 n1/d1 remediation.drain-stuck "
    rejected = event(
        DeviceRejected(generation=1, reasons=("old",), nearest={"driver": "550"}),
        ("n1", "d1"),
        cause=Cause("c"),
        source="/x",
        at=AT,
    )
    assert reach(rejected, "data.nearest.driver") == "550"


def test_floats_are_written_for_people() -> None:
    breached = Breached.model_validate(
        {
            "breach_id": "b",
            "pod": POD.model_dump(),
            "workload": {"namespace": "live", "kind": "Deployment", "name": "edge"},
            "target": 200.0,
            "observed": 312.5,
            "samples": (1.0,),
            "attribution": {"verdict": "unknown"},
        }
    )
    made = event(breached, ("live", "deployment-edge"), cause=Cause("c"), source="/x", at=AT)
    assert fill("{data.target} {data.observed}", made) == "200 312.5"


def test_conditions_need_a_value() -> None:
    assert not Condition.model_validate({"is": 1}).holds(None)
    assert Condition.model_validate({"is": 1}).holds(1)
    assert not Condition.model_validate({"is": 1}).holds(2)
    assert Condition.model_validate({"in": ["a"]}).holds("a")
    assert not Condition.model_validate({"in": ["a"]}).holds("b")
    assert Condition.model_validate({"above": 0}).holds(1)
    assert not Condition.model_validate({"above": 0}).holds("1")


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60))
def test_no_summary_does_more_than_be_refused(text: str) -> None:
    fields = {"fact": "device.lost", "severity": "info", "summary": text, "runbook": "r", "who": "w"}
    with suppress(BadInput):
        assert fill(_rule("mine", fields, Path("rules.yaml")).summary, stuck()) is not None
