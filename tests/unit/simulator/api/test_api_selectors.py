import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.simulator.api.selectors import from_selector, matches_all, parse_fields, parse_labels
from services.simulator.api.status import ApiError

LABELS = {"app": "edge", "tier": "online", "media.example.com/vendor": "nvidia"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=edge", True),
        ("app==edge,tier=online", True),
        ("app=other", False),
        ("app!=other", True),
        ("zone!=a", True),
        ("tier in (online,batch)", True),
        ("tier in (batch)", False),
        ("tier notin (batch), app", True),
        ("zone notin (a)", True),
        ("!zone", True),
        ("! app", False),
        ("media.example.com/vendor = nvidia", True),
        ("app=", False),
    ],
)
def test_a_label_selector_matches_as_the_api_server_does(text: str, matches: bool) -> None:  # noqa: FBT001 - a table
    assert matches_all(parse_labels(text), LABELS) is matches


@pytest.mark.parametrize("text", ["a=b=c", "a in x", "(", "a>1,", "=x", "a in (b"])
def test_a_selector_that_does_not_parse_is_400(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_labels(text)
    assert refused.value.code == 400


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_400(text: str) -> None:
    try:
        matches_all(parse_labels(text), LABELS)
        parse_fields(text, "Pod")({})
    except ApiError as error:
        assert error.code == 400  # noqa: PT017 - either is right


def test_fields_that_are_not_indexed_are_400() -> None:
    with pytest.raises(ApiError):
        parse_fields("spec.hostname=x", "Pod")
    with pytest.raises(ApiError):
        parse_fields("spec.nodeName=x", "ConfigMap")


def test_fields_match_text_booleans_and_absence() -> None:
    node = {"metadata": {"name": "a"}, "spec": {"unschedulable": True}}
    assert parse_fields("spec.unschedulable=true,metadata.name=a", "Node")(node)
    assert parse_fields("spec.unschedulable=false", "Node")({"metadata": {"name": "a"}, "spec": {}})
    assert parse_fields("spec.nodeName=", "Pod")({"metadata": {}, "spec": {}})
    assert parse_fields("involvedObject.name=x", "Event")({"regarding": {"name": "x"}})


def test_a_selector_object_needs_every_clause() -> None:
    selector = from_selector(
        {
            "matchLabels": {"app": "edge"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["batch"]}],
        }
    )
    assert selector is not None
    assert matches_all(selector, LABELS)
    assert not matches_all(selector, {"app": "edge", "tier": "batch"})
    assert from_selector(None) is None
    assert from_selector({}) == ()
    with pytest.raises(ApiError):
        from_selector({"matchExpressions": [{"key": "a", "operator": "Near"}]})
