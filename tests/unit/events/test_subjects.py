"""Subjects spell any place and entity reversibly, and refuse what nobody could have spelled."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.errors import BadInput
from shared.events import Address, Entity, escape, unescape

NAMES = st.text(min_size=1, max_size=60)
KUBERNETES_NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,60}[a-z0-9])?", fullmatch=True)


@given(NAMES)
@example("worker.3")
@example("*")
@example(">")
@example("a_2eb")
@example("ein Name mit Ümlaut")
def test_any_name_survives_escaping(name: str) -> None:
    token = escape(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    assert unescape(token) == name


@given(NAMES, NAMES)
def test_two_names_never_share_a_token(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


def test_escaping_is_the_documented_one() -> None:
    assert escape("worker.3") == "worker_2e3"
    assert escape("a_b") == "a_5fb"
    assert escape("nvidia-0000-3b-00-0") == "nvidia-0000-3b-00-0"


@given(KUBERNETES_NAMES, NAMES)
def test_an_address_survives_its_subject(place: str, entity: str) -> None:
    address = Address("health", place, entity, "reported")
    subject = address.subject
    assert len(subject.split(".")) == 6
    assert Address.parse(subject) == address


@given(st.text(alphabet="abcdef0123_-.*> ", min_size=1, max_size=12))
def test_a_token_is_read_only_as_it_would_be_written(token: str) -> None:
    try:
        name = unescape(token)
    except BadInput:
        return
    assert escape(name) == token


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "fleet.v1",
        "fleet.v1.health.worker-3.gpu",
        "fleet.v1.health.worker-3.gpu.reported.more",
        "fleet.v2.health.worker-3.gpu.reported",
        "other.v1.health.worker-3.gpu.reported",
        "fleet.v1.Health.worker-3.gpu.reported",
        "fleet.v1.health.worker-3.gpu.Reported",
        "fleet.v1.health..gpu.reported",
        "fleet.v1.health.*.gpu.reported",
        "fleet.v1.health.worker-3.>.reported",
        "fleet.v1.health.worker_3.gpu.reported",
        "fleet.v1.health.worker_2E3.gpu.reported",
        "fleet.v1.health.worker_2d3.gpu.reported",
        "fleet.v1.health.worker_ff.gpu.reported",
        "fleet.v1.health.a b.gpu.reported",
    ],
)
def test_a_subject_of_another_shape_is_refused_by_name(subject: str) -> None:
    with pytest.raises(BadInput) as refused:
        Address.parse(subject)
    assert refused.value.field == "subject"
    assert refused.value.fix


@given(st.text(max_size=80))
def test_parsing_a_subject_fails_only_as_bad_input(subject: str) -> None:
    try:
        address = Address.parse(subject)
    except BadInput:
        return
    assert address.subject == subject


@pytest.mark.parametrize("name", ["", "n" * 800, "." * 300])
def test_a_name_that_cannot_be_a_kubernetes_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="subject"):
        escape(name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Address("Health", "worker-3", "gpu", "reported").subject,
        lambda: Address("health", "worker-3", "gpu", "is reported").subject,
    ],
)
def test_a_domain_or_fact_that_is_no_word_is_refused(make: Callable[[], str]) -> None:
    with pytest.raises(BadInput, match="no domain or fact"):
        make()


def test_half_a_surrogate_is_refused_as_bad_input() -> None:
    with pytest.raises(BadInput, match="subject"):
        escape("worker-\ud800")


def test_an_entity_names_its_log() -> None:
    entity = Entity("remediation", "worker.3", "nvidia-0000-3b-00-0")
    assert entity.wildcard == "fleet.v1.remediation.worker_2e3.nvidia-0000-3b-00-0.*"
    assert entity.about == "worker.3/nvidia-0000-3b-00-0"
    assert str(entity) == "remediation:worker.3/nvidia-0000-3b-00-0"
    assert entity.address("struck").of == entity
    assert entity.address("struck").about == entity.about
