"""The definitions against the models that write and read the resources."""

import re
from typing import Any

import pytest
import yaml

from deploy import crds
from services.manager.fleet import Known, spec, status
from shared.devices.model import CodecEngine, Engines, Firmware, Memory, Topology, UnifiedDevice
from shared.events.parts import PodRef, Slot
from shared.events.world import Holding
from tests.unit.deploy.manifests import DEPLOY, Json, build, of_kind

MEDIA = yaml.safe_load((crds.DIRECTORY / "mediaresources.yaml").read_text(encoding="utf-8"))


def schema_of(definition: Json) -> Json:
    (version,) = definition["spec"]["versions"]
    schema: Json = version["schema"]["openAPIV3Schema"]
    return schema


def problems(value: Any, schema: Json, at: str = "") -> list[str]:
    """Where a value does not fit a structural schema, as far as the API server looks without CEL."""
    if value is None:
        return [] if schema.get("nullable") else [f"{at}: null"]
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, int) or re.search(schema["pattern"], value) else [f"{at}: {value!r}"]
    types: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    if not isinstance(value, types[schema["type"]]) or (
        schema["type"] != "boolean" and isinstance(value, bool)
    ):
        return [f"{at}: {value!r} is no {schema['type']}"]
    found = [f"{at}: {value!r}"] if "enum" in schema and value not in schema["enum"] else []
    if isinstance(value, (int, float)) and "minimum" in schema:
        low = value <= schema["minimum"] if schema.get("exclusiveMinimum") else value < schema["minimum"]
        found += [f"{at}: {value} is too low"] if low else []
    if isinstance(value, list):
        found += [
            each
            for index, item in enumerate(value)
            for each in problems(item, schema["items"], f"{at}[{index}]")
        ]
    if isinstance(value, dict):
        found += [f"{at}.{name}: missing" for name in schema.get("required", ()) if name not in value]
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is not None:
                found += problems(item, inner, f"{at}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                found.append(f"{at}.{name}: unknown")
    return found


def test_the_generated_definitions_are_as_the_models_say() -> None:
    assert crds.main(["--check"]) == 0, "run `python -m deploy.crds --write`"


def test_a_definition_that_differs_is_named(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mediaresources.yaml").write_text(yaml.safe_dump(MEDIA))
    monkeypatch.setattr(crds, "DIRECTORY", tmp_path)
    assert crds.main(["--check"]) == 1
    assert "remediationpolicies.yaml" in capsys.readouterr().err
    assert crds.main(["--write"]) == 0
    assert crds.main(["--check"]) == 0


def test_what_the_manager_writes_fits_the_definition() -> None:
    unified = UnifiedDevice(
        uid="nvidia-worker-3-0000:3b:00.0",
        key="nvidia-0000-3b-00-0",
        node="worker-3",
        vendor="nvidia",
        type="GPU",
        model="L4",
        serial="1650522000001",
        memory=Memory(total_bytes=24 * 2**30),
        codec_engine=CodecEngine(engines=Engines(enc=2, dec=4, jpeg=4)),
        topology=Topology(bus_address="0000:3b:00.0", numa_node=1),
        firmware=Firmware(driver="550.90.07"),
        capabilities=("cuda-12.4", "nvenc-2"),
    )
    holding = Holding(
        allocation_id="a1",
        device=unified.key,
        resource="media.example.com/nvenc",
        slots=(Slot(engine="nvidia-0000-3b-00-0-enc-1", slot=0),),
        pod=PodRef(namespace="live", name="edge-1", uid="u1"),
        container="edge",
    )
    known = Known(
        "worker-3",
        unified.key,
        unified,
        "registered",
        1,
        verdict="healthy",
        epoch=2,
        holdings={"a1": holding},
    )
    written = {"spec": spec(unified), "status": status(known)}
    assert (
        problems({"apiVersion": "x", "kind": "x", "metadata": {}} | written, _whole(schema_of(MEDIA))) == []
    )


def test_a_device_of_which_little_is_known_fits_too() -> None:
    bare = UnifiedDevice(uid="u", key="generic-npu0", node="w", vendor="generic", type="NPU", model="unknown")
    written = {"spec": spec(bare), "status": status(Known("w", bare.key, bare, "rejected"))}
    assert problems(written, schema_of(MEDIA)) == []
    assert "capacity" in written["spec"]


def test_an_unknown_verdict_or_a_nameless_model_does_not_fit() -> None:
    bad = {
        "spec": {"type": "TPU", "vendor": "X", "model": "m", "topology": {"node": "n"}},
        "status": {"verdict": "fine", "epoch": -1},
    }
    said = problems(bad, schema_of(MEDIA))
    assert {line.partition(":")[0] for line in said} == {".spec.type", ".status.verdict", ".status.epoch"}


@pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.name)
def test_a_policy_with_every_default_written_out_fits_its_definition(kind: crds.Kind) -> None:
    written = kind.model().model_dump(mode="json")
    assert problems(written, schema_of(crds.manifest(kind))["properties"]["spec"]) == []


@pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.name)
def test_every_field_of_a_policy_is_in_its_definition_with_its_description(kind: crds.Kind) -> None:
    fields = schema_of(crds.manifest(kind))["properties"]["spec"]["properties"]
    assert fields.keys() == kind.model.model_fields.keys()
    assert all(each["description"] for each in fields.values())


@pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.name)
def test_every_rule_says_what_to_do_and_reads_fields_that_may_be_left_out(kind: crds.Kind) -> None:
    text = crds.text(kind)
    assert "title:" not in text
    assert "$ref" not in text
    for rule in kind.rules:
        assert len(rule.message) > 30
        assert "{" in rule.holds or rule.holds.startswith("self.all(")
    rules = re.findall(r"self\.\?[a-z_.?]+", text)
    assert rules
    assert text.count("x-kubernetes-validations") >= 2


def test_every_policy_lives_under_one_name_and_in_another_domain_too() -> None:
    for kind in crds.KINDS:
        elsewhere = crds.manifest(kind, "accelerators.example.org")
        assert elsewhere["metadata"]["name"] == f"{kind.plural}.accelerators.example.org"
        (rule,) = schema_of(elsewhere)["x-kubernetes-validations"]
        assert rule["rule"] == "self.metadata.name == 'default'"


def test_conditions_are_kept_one_per_type() -> None:
    for definition in (MEDIA, *(crds.manifest(kind) for kind in crds.KINDS)):
        conditions = schema_of(definition)["properties"]["status"]["properties"]["conditions"]
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_kubectl_get_shows_where_a_device_is_and_how_it_stands() -> None:
    (version,) = MEDIA["spec"]["versions"]
    wide = [each["name"] for each in version["additionalPrinterColumns"] if not each.get("priority")]
    assert wide == ["Node", "Model", "Phase", "Verdict", "Epoch", "Used by", "Age"]
    assert version["subresources"] == {"status": {}}


def test_the_examples_fit_their_definitions() -> None:
    definitions = {each["spec"]["names"]["kind"]: each for each in (MEDIA, *map(crds.manifest, crds.KINDS))}
    seen = set()
    for example in build("examples"):
        definition = definitions.get(example["kind"])
        if definition is not None:
            assert problems(example, _whole(schema_of(definition))) == [], example["kind"]
            seen.add(example["kind"])
    assert seen == definitions.keys()


def test_every_definition_is_part_of_the_base() -> None:
    built = {each["metadata"]["name"] for each in of_kind(build("base"), "CustomResourceDefinition")}
    assert built == {
        f"{name}.media.example.com" for name in ("mediaresources", "remediationpolicies", "guardianpolicies")
    }
    assert {path.stem for path in (DEPLOY / "base" / "crd").glob("*policies.yaml")} == {
        k.plural for k in crds.KINDS
    }


def _whole(schema: Json) -> Json:
    """With what the API server adds to every object."""
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    added = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": loose}
    return schema | {"properties": schema["properties"] | added}
