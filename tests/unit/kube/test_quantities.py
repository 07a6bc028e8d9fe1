from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import BadInput
from shared.kube.quantities import parse_quantities, parse_quantity, pod_requests


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", Decimal(4)),
        (4, Decimal(4)),
        (0.5, Decimal("0.5")),
        ("500m", Decimal("0.5")),
        ("1.5Gi", Decimal(3 << 29)),
        ("8Gi", Decimal(8 << 30)),
        ("2k", Decimal(2000)),
        ("1e3", Decimal(1000)),
        ("12E", Decimal(12 * 10**18)),
        ("-1", Decimal(-1)),
        (".5", Decimal("0.5")),
        ("100n", Decimal("0.0000001")),
    ],
)
def test_a_quantity_is_an_exact_number_in_base_units(text: object, number: Decimal) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "8GB", "eight", "1 Gi", "NaN", "inf", "1e", None, True, [], "--1", "0x10", "٣"]
)
def test_what_is_no_quantity_names_its_field(text: object) -> None:
    with pytest.raises(BadInput) as refused:
        parse_quantity(text, field="status.capacity[nvenc]")
    assert refused.value.field == "status.capacity[nvenc]"


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_bad_input(text: str) -> None:
    with suppress(BadInput):
        assert parse_quantity(text).is_finite()


def test_the_field_of_a_list_names_the_resource() -> None:
    with pytest.raises(BadInput, match=r"resources\[nvenc\]"):
        parse_quantities({"nvenc": "x"})


def container(limits: dict[str, str] | None = None, **more: object) -> dict[str, object]:
    return {"name": "c", "resources": {"limits": limits or {}, **more}}


def test_a_pods_requests_are_the_sum_of_its_containers() -> None:
    spec = {"containers": [container({"x/y": "1"}), container({"x/y": "2"}, requests={"cpu": "500m"})]}
    assert pod_requests(spec) == {"x/y": 3, "cpu": Decimal("0.5")}


def test_a_request_beats_the_limit_it_stands_beside() -> None:
    assert pod_requests({"containers": [container({"cpu": "2"}, requests={"cpu": "1"})]}) == {"cpu": 1}


def test_the_largest_init_container_counts_where_it_needs_more() -> None:
    spec = {
        "containers": [container({"cpu": "1"})],
        "initContainers": [container({"cpu": "3"}), container({"cpu": "2"})],
    }
    assert pod_requests(spec) == {"cpu": 3}


def test_a_sidecar_counts_beside_the_containers_and_the_later_init_containers() -> None:
    sidecar = container({"cpu": "1"}) | {"restartPolicy": "Always"}
    spec = {"containers": [container({"cpu": "1"})], "initContainers": [sidecar, container({"cpu": "3"})]}
    assert pod_requests(spec) == {"cpu": 4}
    assert pod_requests({"containers": [container({"cpu": "1"})], "initContainers": [sidecar]}) == {"cpu": 2}


def test_overhead_is_added() -> None:
    assert pod_requests({"containers": [container({"cpu": "1"})], "overhead": {"cpu": "100m"}}) == {
        "cpu": Decimal("1.1")
    }
