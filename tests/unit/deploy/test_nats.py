"""The bus in Kubernetes: three servers apart from accelerators, and for every client its own credentials."""

from __future__ import annotations

import pytest
import yaml

from services.authcallout.settings import AuthcalloutSettings
from shared.bus.permissions import AGENTS, SERVICES
from shared.bus.server_config import ISSUER
from tests.unit.deploy.manifests import DEPLOY, build, named, of_kind, pod_spec

NATS = DEPLOY / "base" / "nats"


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agents_token_is_for_the_audience_that_the_callout_asks_for(agent: str) -> None:
    workload = named(build("base"), "DaemonSet", agent)
    (container,) = pod_spec(workload)["containers"]
    (path,) = (each["value"] for each in container["env"] if each["name"] == "MEDIAFLEET_NATS_TOKEN_FILE")
    (projected,) = (each["projected"] for each in pod_spec(workload)["volumes"] if "projected" in each)
    (source,) = (each["serviceAccountToken"] for each in projected["sources"])
    assert source["audience"] == AuthcalloutSettings.model_fields["audience"].default
    assert path.endswith(f"/{source['path']}")
    assert pod_spec(workload)["serviceAccountName"] == agent


def test_every_user_that_runs_in_the_cluster_has_a_secret_of_its_own() -> None:
    mounted = {
        volume["secret"]["secretName"]
        for workload in of_kind(build("base"), "Deployment")
        for volume in pod_spec(workload)["volumes"]
        if "secret" in volume
    }
    own = {f"mediafleet-bus-{name}" for name in (*SERVICES, "authcallout", "provision", ISSUER)}
    assert mounted == own | {"mediafleet-nats-tls"}


def test_the_callout_runs_twice_where_its_settings_say_and_may_read_keys_only() -> None:
    objects = build("base")
    workload = named(objects, "Deployment", "authcallout")
    assert workload["spec"]["replicas"] == 2
    assert workload["metadata"]["namespace"] == AuthcalloutSettings.model_fields["namespace"].default
    bound = [
        each["roleRef"]["name"]
        for each in of_kind(objects, "ClusterRoleBinding", "RoleBinding")
        if any(subject["name"] == "authcallout" for subject in each["subjects"])
    ]
    assert bound == ["system:service-account-issuer-discovery"]


def test_the_servers_are_three_on_disk_with_tls_and_away_from_accelerators() -> None:
    values = yaml.safe_load((NATS / "values.yaml").read_text(encoding="utf-8"))
    config = values["config"]
    assert config["cluster"]["replicas"] == 3
    assert config["jetstream"]["fileStore"]["pvc"]["enabled"]
    assert config["nats"]["tls"]["enabled"]
    assert config["cluster"]["tls"]["merge"] == {"verify": True}
    spec = values["podTemplate"]["merge"]["spec"]
    assert spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [{"key": "media.example.com/gpu-vendor", "operator": "DoesNotExist"}]


def test_accounts_hold_no_secret_and_pin_the_acknowledgements_form() -> None:
    text = (NATS / "accounts.yaml").read_text(encoding="utf-8")
    merged = yaml.safe_load(text)["config"]["merge"]
    assert merged["feature_flags"] == {"js_ack_fc_v2": False}
    assert "password" not in text
    for account in merged["accounts"].values():
        for user in account["users"]:
            assert user["nkey"].startswith("<< $MEDIAFLEET_NKEY_")
