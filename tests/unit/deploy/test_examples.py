"""The first sketch's examples, as they had to become to apply (docs/deploy.md says what changed)."""

import yaml

from services.guardian.annotation import LATENCY_P99_MS, parse
from tests.unit.deploy.manifests import DEPLOY, build, named, of_kind, pod_spec


def test_a_quota_counts_extended_resources_by_requests_only() -> None:
    for quota in of_kind(build("examples"), "ResourceQuota"):
        for name in quota["spec"]["hard"]:
            assert not name.startswith("limits."), "the API server refuses limits of an extended resource"
            assert not name.startswith("priorityclasses."), "priority classes are selected by scopeSelector"
    classes = {
        value
        for quota in of_kind(build("examples"), "ResourceQuota")
        for term in quota["spec"].get("scopeSelector", {}).get("matchExpressions", ())
        for value in term["values"]
    }
    assert classes == {"media-realtime-high", "media-batch-low"}
    assert classes <= {each["metadata"]["name"] for each in of_kind(build("base"), "PriorityClass")}


def test_the_transcode_job_is_not_failed_by_an_eviction() -> None:
    job = named(build("examples"), "Job", "transcode-4k-h265-0001")
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "Ignore"
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert pod_spec(job)["restartPolicy"] == "Never", "what podFailurePolicy needs"


def test_the_transcode_job_asks_for_an_engine_and_lets_the_allocation_choose_the_device() -> None:
    (container,) = pod_spec(named(build("examples"), "Job", "transcode-4k-h265-0001"))["containers"]
    resources = container["resources"]
    ours = {name: value for name, value in resources["limits"].items() if "/" in name}
    assert ours == {"media.example.com/nvenc": "1", "media.example.com/gpu-memory": "8Gi"}
    assert ours.items() <= resources["requests"].items(), "requests of extended resources equal their limits"
    assert "NVIDIA_VISIBLE_DEVICES" not in {each["name"] for each in container["env"]}


def test_the_online_example_has_a_target_that_the_guardian_can_read() -> None:
    template = named(build("examples"), "Deployment", "video-analytics")["spec"]["template"]["metadata"]
    assert template["labels"]["media.example.com/tier"] == "online"
    assert parse(template["annotations"][LATENCY_P99_MS]).latency_p99_ms == 250
    assert parse(template["annotations"][LATENCY_P99_MS]).doubt == ""


def test_the_hpa_owns_the_replicas_of_what_it_scales() -> None:
    objects = build("examples")
    hpa = named(objects, "HorizontalPodAutoscaler", "video-analytics-hpa")["spec"]
    target = named(objects, "Deployment", hpa["scaleTargetRef"]["name"])
    assert "replicas" not in target["spec"]
    assert hpa["metrics"][0]["pods"]["metric"]["name"] == "npu_inference_queue_length"
    assert hpa["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 30


def test_colocation_is_koordinators_own_kind() -> None:
    profiles = of_kind(build("examples/koordinator"), "ClusterColocationProfile")
    assert {profile["spec"]["qosClass"] for profile in profiles} == {"LSR", "BE"}


def test_the_schedulers_configuration_is_whole_and_keeps_the_sketchs_number() -> None:
    path = DEPLOY / "examples" / "scheduler" / "kube-scheduler-config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    ((plugin,),) = (profile["pluginConfig"] for profile in config["profiles"])
    assert plugin["args"]["kind"] == f"{plugin['name']}Args"
    assert plugin["args"]["minCandidateNodesPercentage"] == 10
