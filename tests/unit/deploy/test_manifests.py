"""What every manifest keeps to, looked at in the overlays as kustomize builds them."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

from deploy import crds
from services.autoscaler.policy import AutoscalerPolicy
from services.guardian.policy import GuardianPolicy
from services.remediation.policy import Policy as RemediationPolicy
from shared.host import ServiceSettings, SharedSettings
from shared.host.policy import load_policy
from shared.host.settings import describe
from tests.unit.deploy.manifests import (
    CLUSTER_SERVICES,
    DEPLOY,
    NODE_SERVICES,
    ROOT,
    WORKLOADS,
    Json,
    build,
    containers,
    files,
    named,
    of_kind,
    our_workloads,
    pod_spec,
)

OVERLAYS = ("base", "overlays/dev", "overlays/production")
HOST_PATHS = {
    "discovery": {"/var/lib/mediafleet", "/etc/os-release"},
    "bridge": {
        "/var/lib/mediafleet",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/dev",
        "/sys",
        "/proc/sys/kernel/random",
    },
}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_file_is_yaml_with_kind_and_name(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        no_object = ("Kustomization", "Component", "KubeSchedulerConfiguration")
        if document and "kind" in document and document["kind"] not in no_object:
            assert document["apiVersion"]
            assert document["metadata"]["name"]


@pytest.mark.parametrize("overlay", [*OVERLAYS, "examples", "examples/koordinator"])
def test_an_overlay_builds_and_names_every_object_once(overlay: str) -> None:
    names = [
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
        for each in build(overlay)
    ]
    assert names
    assert len(names) == len(set(names))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_service_has_one_workload_of_its_sort(overlay: str) -> None:
    objects = build(overlay)
    assert {each["metadata"]["name"] for each in of_kind(objects, "DaemonSet")} >= set(NODE_SERVICES)
    assert {each["metadata"]["name"] for each in of_kind(objects, "Deployment")} >= set(CLUSTER_SERVICES)
    for workload in our_workloads(objects):
        name = workload["metadata"]["name"]
        assert pod_spec(workload)["containers"][0]["command"] == ["mediafleet", "run", name]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_container_is_privileged_or_can_become_more_than_it_is(overlay: str) -> None:
    for workload in of_kind(build(overlay), *WORKLOADS):
        pod = pod_spec(workload)
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(workload):
            context = container["securityContext"]
            assert "privileged" not in context
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            added = context["capabilities"].get("add", [])
            assert added == (["SYSLOG"] if workload["metadata"]["name"] == "discovery" else [])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_node_agents_run_as_root(overlay: str) -> None:
    for workload in our_workloads(build(overlay)):
        context = pod_spec(workload)["securityContext"]
        if workload["metadata"]["name"] not in NODE_SERVICES:
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] > 0
        else:
            assert context["runAsUser"] == 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_container_has_requests_and_a_memory_limit_and_services_have_probes(overlay: str) -> None:
    for workload in of_kind(build(overlay), *WORKLOADS):
        for container in containers(workload):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys(), container["name"]
            assert "memory" in resources["limits"]
    for workload in our_workloads(build(overlay)):
        (service,) = pod_spec(workload)["containers"]
        paths = {
            probe: service[probe]["httpGet"]["path"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_longer_to_end_than_its_service_takes(overlay: str) -> None:
    stop_within_s = SharedSettings.model_fields["stop_within_s"].default
    for workload in our_workloads(build(overlay)):
        assert pod_spec(workload)["terminationGracePeriodSeconds"] >= stop_within_s + 5


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_our_image_has_one_name_and_no_file_names_a_registry(overlay: str) -> None:
    images = {
        container["image"] for workload in our_workloads(build(overlay)) for container in containers(workload)
    }
    assert len(images) == 1
    assert images.pop().partition(":")[0] == "mediafleet"
    host = re.compile(r"image: *[\"']?[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?/")
    for path in files():
        assert not host.search(path.read_text(encoding="utf-8")), path


def test_only_node_agents_mount_the_host_and_only_what_is_listed() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    for workload in our_workloads(build("base")):
        name = workload["metadata"]["name"]
        mounted = {
            volume["hostPath"]["path"]
            for volume in pod_spec(workload).get("volumes") or ()
            if "hostPath" in volume
        }
        assert mounted == HOST_PATHS.get(name, set())
        for path in mounted:
            assert f"`{path}`" in page, f"docs/deploy.md lists {path} with its reason"


def test_no_socket_is_mounted_but_its_directory() -> None:
    for workload in our_workloads(build("base")):
        for volume in pod_spec(workload).get("volumes") or ():
            assert volume.get("hostPath", {}).get("type") != "Socket"
            assert not volume.get("hostPath", {}).get("path", "").endswith(".sock")


def test_socket_paths_below_the_hosts_root_stay_short_enough_for_the_kernel() -> None:
    (container,) = pod_spec(named(build("base"), "DaemonSet", "bridge"))["containers"]
    longest = max(len(mount["mountPath"]) for mount in container["volumeMounts"])
    assert longest + len("/media.example.com_nvenc-0123456789.sock") < 108


def test_node_agents_have_no_token_for_the_api_server_but_one_for_the_bus() -> None:
    for name in NODE_SERVICES:
        pod = pod_spec(named(build("base"), "DaemonSet", name))
        assert pod["automountServiceAccountToken"] is False
        (token,) = (volume["projected"] for volume in pod["volumes"] if "projected" in volume)
        (source,) = (
            each["serviceAccountToken"] for each in token["sources"] if "serviceAccountToken" in each
        )
        assert source["audience"] == "nats"


def secrets(pod: Json) -> set[str]:
    return {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}


def test_every_service_sees_its_own_key_for_the_bus_and_of_the_servers_only_the_ca() -> None:
    objects = build("base")
    for workload in our_workloads(objects):
        name, pod = workload["metadata"]["name"], pod_spec(workload)
        own = {f"mediafleet-bus-{name}"} if name not in NODE_SERVICES else set()
        also = {"manager": {"mediafleet-bus-provision"}, "authcallout": {"mediafleet-bus-issuer"}}.get(
            name, set()
        )
        assert secrets(pod) == own | also | {"mediafleet-nats-tls"}
        (ca,) = (each["secret"] for each in pod["volumes"] if each["name"] == "bus-ca")
        assert ca["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
        (service,) = pod["containers"]
        assert "bus-key-provision" not in {mount["name"] for mount in service["volumeMounts"]}


def test_files_that_settings_name_are_mounted() -> None:
    objects = build("base")
    (settings,) = (
        each["data"]
        for each in of_kind(objects, "ConfigMap")
        if each["metadata"]["name"].startswith("mediafleet-settings")
    )
    for workload in our_workloads(objects):
        for container in containers(workload):
            given = settings | {each["name"]: each.get("value", "") for each in container["env"]}
            mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
            for name, value in given.items():
                if name.endswith("_FILE"):
                    assert any(value.startswith(f"{mount}/") for mount in mounts), (container["name"], name)


def test_an_open_bus_leaves_no_trace_of_keys() -> None:
    objects = build("overlays/dev")
    assert all(not secrets(pod_spec(workload)) for workload in our_workloads(objects))
    assert not any("authcallout" in each["metadata"]["name"] for each in objects)
    assert "_FILE: /var/run/secrets" not in yaml.safe_dump(objects)
    assert named(objects, "Service", "nats")["spec"]["ports"][0]["port"] == 4222


def test_a_rollout_takes_few_nodes_and_never_runs_two_agents_on_one() -> None:
    for name in NODE_SERVICES:
        strategy = named(build("base"), "DaemonSet", name)["spec"]["updateStrategy"]
        assert strategy["rollingUpdate"] == {"maxUnavailable": "5%", "maxSurge": 0}


def test_services_with_a_lease_have_two_replicas_and_a_budget_that_lets_a_node_be_drained() -> None:
    for overlay in ("base", "overlays/production"):
        objects = build(overlay)
        for name in CLUSTER_SERVICES:
            deployment = named(objects, "Deployment", name)
            assert deployment["spec"]["replicas"] == 2
            budget = named(objects, "PodDisruptionBudget", name)["spec"]
            assert budget["maxUnavailable"] == 1
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert budget["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_reference_inside_an_overlay_leads_somewhere(overlay: str) -> None:
    objects = build(overlay)
    maps = {each["metadata"]["name"] for each in of_kind(objects, "ConfigMap")}
    accounts = {each["metadata"]["name"] for each in of_kind(objects, "ServiceAccount")}
    priorities = {each["metadata"]["name"] for each in of_kind(objects, "PriorityClass")}
    for workload in our_workloads(objects):
        pod = pod_spec(workload)
        assert pod["serviceAccountName"] in accounts
        assert pod["priorityClassName"] in priorities | {"system-node-critical"}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for volume in volumes.values():
            if "configMap" in volume and not volume["configMap"].get("optional"):
                assert volume["configMap"]["name"] in maps
        for container in containers(workload):
            assert {source["configMapRef"]["name"] for source in container["envFrom"]} <= maps
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
        selector = workload["spec"]["selector"]["matchLabels"]
        assert selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_setting_in_a_manifest_is_one_that_the_services_know(overlay: str) -> None:
    known = {variable for variable, _default, _meaning in describe(SharedSettings)}
    for module in sorted((ROOT / "services").glob("*/settings.py")):
        own = vars(importlib.import_module(f"services.{module.parent.name}.settings")).values()
        for each in own:
            if isinstance(each, type) and issubclass(each, ServiceSettings) and each is not ServiceSettings:
                known |= {variable for variable, _default, _meaning in describe(each)}
    objects = build(overlay)
    (settings,) = (
        each
        for each in of_kind(objects, "ConfigMap")
        if each["metadata"]["name"].startswith("mediafleet-settings")
    )
    names = set(settings["data"])
    for workload in our_workloads(objects):
        for container in containers(workload):
            names |= {each["name"] for each in container.get("env") or ()}
    for name in names:
        if name.startswith("MEDIAFLEET_"):
            assert name in known


def test_the_shipped_policy_is_valid_and_lets_the_guardian_only_watch() -> None:
    path = DEPLOY / "base" / "policy.yaml"
    assert not load_policy(path, "remediation", RemediationPolicy).dry_run
    assert load_policy(path, "guardian", GuardianPolicy).dry_run
    assert not load_policy(path, "autoscaler", AutoscalerPolicy).dry_run


def test_network_policies_deny_first_and_name_only_pods_that_exist() -> None:
    objects = build("base")
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    allowed = set(policies["to-the-api-server"]["podSelector"]["matchExpressions"][0]["values"])
    automounted = {
        workload["metadata"]["name"]
        for workload in our_workloads(objects)
        if pod_spec(workload).get("automountServiceAccountToken")
    }
    assert automounted == {*CLUSTER_SERVICES, "authcallout"} - {"alerting"}
    assert automounted == allowed


def test_admission_forbids_what_the_exceptions_do_not_name() -> None:
    policy = named(build("base"), "ValidatingAdmissionPolicy", "mediafleet-pods")["spec"]
    assert policy["failurePolicy"] == "Fail"
    said = " ".join(each["expression"] for each in policy["validations"])
    for word in ("privileged", "hostNetwork", "hostPID", "hostIPC", "SYSLOG", "hostPath"):
        assert word in said
    assert all(each["message"] for each in policy["validations"])


def test_another_domain_reaches_definitions_rights_and_settings(tmp_path: Path) -> None:
    elsewhere = tmp_path / "kustomization.yaml"
    base, component = (
        Path("../" * len(tmp_path.parts[1:])) / str(DEPLOY / part).lstrip("/")
        for part in ("base", "components/domain")
    )
    elsewhere.write_text(yaml.safe_dump({"resources": [str(base)], "components": [str(component)]}))
    objects = build(tmp_path)
    domain = "accelerators.example.org"
    for definition in of_kind(objects, "CustomResourceDefinition"):
        assert definition["spec"]["group"] == domain
        assert definition["metadata"]["name"] == f"{definition['spec']['names']['plural']}.{domain}"
    for role in of_kind(objects, "ClusterRole"):
        for rule in role["rules"]:
            assert crds.DOMAIN not in rule["apiGroups"]
    assert crds.DOMAIN not in yaml.safe_dump(of_kind(objects, "Deployment", "DaemonSet", "ConfigMap"))


def test_a_simulated_tree_takes_the_place_of_the_hosts_devices_and_never_of_the_kubelet(
    tmp_path: Path,
) -> None:
    up = Path("../" * len(tmp_path.parts[1:]))
    base, component = (
        str(up / str(DEPLOY / part).lstrip("/")) for part in ("base", "components/simulated-devices")
    )
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [base], "components": [component]})
    )
    objects = build(tmp_path)
    paths = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in pod_spec(named(objects, "DaemonSet", "bridge"))["volumes"]
        if "hostPath" in volume
    }
    assert paths["device-plugins"] == "/var/lib/kubelet/device-plugins"
    assert {paths[name] for name in ("host-dev", "host-sys")} == {
        "/var/lib/mediafleet-devices/dev",
        "/var/lib/mediafleet-devices/sys",
    }
    (container,) = pod_spec(named(objects, "DaemonSet", "discovery"))["containers"]
    roots = [each["value"] for each in container["env"] if each["name"] == "MEDIAFLEET_HOST_ROOT"]
    assert roots == ["/host"]
