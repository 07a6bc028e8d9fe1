from pathlib import Path

import orjson
import pytest

from services.console.show import as_json, console, event_json, event_line, table
from services.console.words import colour, say
from shared.events import Address, Unknown, decode
from shared.events.envelope import AnyEvent

SAMPLES = sorted((Path(__file__).parents[2] / "fixtures" / "events" / "v1").glob("*.json"))


def load(path: Path) -> AnyEvent:
    body = path.read_bytes()
    envelope = orjson.loads(body)
    domain, fact, _ = envelope["type"].removeprefix("io.mediafleet.").split(".")
    place, _, entity = envelope["subject"].partition("/")
    event = decode(Address(domain, place, entity, fact).subject, body)
    assert not isinstance(event, Unknown)
    return event


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_event_is_told_in_one_line(path: Path) -> None:
    event = load(path)
    line = event_line(event).plain
    assert say(event)
    assert "\n" not in line
    assert event.subject in line
    assert colour(event)
    assert event_line(event, since=event.time.timestamp()).plain.strip().startswith("+0.00 s")


def test_an_event_of_an_unknown_type_is_shown_as_it_came() -> None:
    unknown = Unknown(Address("node", "w", "agent", "sang"), "i", b'{"id":"i"}')
    assert "does not know" in event_line(unknown).plain
    assert event_json(unknown) == {
        "address": "fleet.v1.node.w.agent.sang",
        "id": "i",
        "unknown": True,
        "raw": '{"id":"i"}',
    }


def test_json_holds_the_envelope_and_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    event = load(SAMPLES[0])
    as_json(event_json(event))
    shown = orjson.loads(capsys.readouterr().out)
    assert (shown["id"], shown["address"]) == (event.id, event.address.subject)


def test_a_table_shows_a_dash_for_what_is_not_known_and_a_hint_when_empty() -> None:
    with console.capture() as shown:
        table([{"a": 1, "b": None}], {"a": "A", "b": "B"}, empty="nothing")
        table([], {"a": "A"}, empty="nothing here: start it")
    assert shown.get().split() == ["A", "B", "1", "-", "nothing", "here:", "start", "it"]
