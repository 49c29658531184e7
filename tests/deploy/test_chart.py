"""The chart, rendered by the real helm: valid, hardened, closed, and true to the code.

Prefect's own charts come from a Helm repository: where `helm dependency build` has not brought
them, `fake_prefect_chart` shows what they get.
"""

import ast
import ipaddress
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.cli.cache import KINDS
from flows.cli.main import cli
from flows.cli.serve import HTTP_PORT
from flows.machine.programs import CPU_POOL, GPU_POOL, GRACE_S
from flows.server.process import SETTINGS
from flows.server.worker import STOP_S
from sam2_core.machine import METRICS_PORT
from tasks.review.app import DEFAULT_PORT
from tests.conftest import REPOSITORY

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`make dev` installs it")
HELM = shutil.which("helm", path=Path(sys.executable).parent)
pytestmark = [pytest.mark.ci, pytest.mark.skipif(HELM is None, reason="`make dev` installs helm")]

CHART = REPOSITORY / "deploy" / "chart"
VALUES = [CHART / "values.yaml", *sorted((CHART / "ci").glob("*.yaml"))]
# Of those that the Pod Security Standard `restricted` allows.
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
CACHE = "/var/cache/autolabel"
CLAIM = "PersistentVolumeClaim"
PREFIX = "PREFECT_INTEGRATIONS_KUBERNETES_"  # of prefect-kubernetes, which only its image has
OF_PREFECTS_CHARTS = {
    "HOME", "PREFECT_KUBERNETES_CLUSTER_UID", f"{PREFIX}OBSERVER_NAMESPACES",
    f"{PREFIX}WORKER_API_AUTH_STRING_SECRET_NAME", f"{PREFIX}WORKER_API_AUTH_STRING_SECRET_KEY",
}  # fmt: skip
# Their schemas are not in kubernetes-validate.
CUSTOM = {"ScaledJob", "TriggerAuthentication", "ServiceMonitor", "PrometheusRule"}


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    """The chart with Prefect's, or with fakes in their place."""
    folder = tmp_path_factory.mktemp("chart") / "sam2-autolabel"
    shutil.copytree(CHART, folder)
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for one in [] if (folder / "charts").is_dir() else described["dependencies"]:
        fake = folder / "charts" / one["name"]
        shutil.copytree(Path(__file__).parent / "fake_prefect_chart", fake)
        named = (fake / "Chart.yaml").read_text().replace("name: fake", f"name: {one['name']}")
        (fake / "Chart.yaml").write_text(named)
    return folder


def helm(*arguments):
    return subprocess.run([HELM, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=VALUES, ids=lambda path: path.stem)
def rendered(request, chart):
    """Objects of one installation."""
    linted = helm("lint", "--strict", chart, "-f", request.param)
    assert linted.returncode == 0, linted.stdout
    return objects(chart, request.param)


def objects(chart, values, *settings):
    made = helm("template", "drives", chart, "-n", "night", "-f", values, *settings)
    assert made.returncode == 0, made.stderr
    return [one for one in yaml.safe_load_all(made.stdout) if one]


@pytest.fixture
def pods(rendered):
    return all_pods(rendered)


def all_pods(rendered):
    """Labels and specification of every pod, also of those that Prefect makes for flow runs."""
    found = []
    for one in rendered:
        spec = one.get("spec", {})
        template = spec.get("template") or spec.get("jobTargetRef", {}).get("template")
        if one["kind"] == "ConfigMap" and "baseJobTemplate.json" in one["data"]:
            (template,) = flow_run_pods([one])
        if template:
            found.append((template["metadata"]["labels"], template["spec"]))
    return found


def flow_run_pods(rendered):
    forms = [
        json.loads(one["data"]["baseJobTemplate.json"])["job_configuration"]
        for one in rendered
        if one["kind"] == "ConfigMap" and "baseJobTemplate.json" in one["data"]
    ]
    for form in forms:  # else Prefect would name pods by their deployment, and policies pass them
        assert form["labels"] == form["job_manifest"]["spec"]["template"]["metadata"]["labels"]
    return [form["job_manifest"]["spec"]["template"] for form in forms]


def test_a_flow_runs_pod_is_a_workers_but_for_what_it_runs(chart):
    settings = [
        "--set", "triton.enabled=true,objectStorage.endpoint=https://s3,pools.gpu.extraEnv[0].name=A,"
        "imagePullSecrets[0].name=registry,pools.gpu.runtimeClassName=nvidia,pools.gpu.nodeSelector.a=b"
    ]  # fmt: skip
    of_gpu = {"app.kubernetes.io/component": "worker", "sam2-autolabel/pool": "gpu"}
    (worker,) = (
        one["spec"]["template"]
        for one in objects(chart, CHART / "values.yaml", *settings)
        if one["kind"] == "Deployment"
        and selects({"matchLabels": of_gpu}, one["spec"]["template"]["metadata"]["labels"])
    )
    (pod,) = flow_run_pods(objects(chart, CHART / "ci" / "pods-values.yaml", *settings))
    assert pod["spec"].pop("restartPolicy") == "Never"
    (container,), (workers,) = pod["spec"]["containers"], worker["spec"]["containers"]
    assert (container.pop("name"), container.pop("args")) == ("prefect-job", "{{ command }}")
    for name in "name", "command", "args", "readinessProbe":
        del workers[name]
    assert pod == worker


def test_prefects_worker_names_the_secret_and_makes_the_pool_of_this_chart(chart):
    """Else it hands the password itself to every Job, and makes a pool of Prefect's pods."""
    found = objects(chart, CHART / "ci" / "pods-values.yaml")
    (spec,) = (
        one["spec"]["template"]["spec"]
        for one in found
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "prefect-worker"
    )
    given = {one["name"]: one for one in spec["containers"][0]["env"]}
    secret = given["PREFECT_API_AUTH_STRING"]["valueFrom"]["secretKeyRef"]
    for part in "name", "key":
        told = given[f"{PREFIX}WORKER_API_AUTH_STRING_SECRET_{part.upper()}"]
        assert told["value"] == secret[part]
    (template,) = (one["configMap"] for one in spec["volumes"] if "configMap" in one)
    (form,) = (one for one in found if one["kind"] == "ConfigMap")
    assert (form["metadata"]["name"], set(form["data"])) == (
        template["name"], {"baseJobTemplate.json"},
    )  # fmt: skip


def test_a_pods_device_replaces_the_default_one(rendered, pods):
    for labels, spec, container in containers(pods, "sam2-autolabel"):
        devices = {k: v for k, v in container["resources"]["limits"].items() if "/" in k}
        pool = labels.get("sam2-autolabel/pool", labels["app.kubernetes.io/component"])
        expected = {
            "gpu": "nvidia.com/gpu",
            "triton": "nvidia.com/gpu",
            "mig": "nvidia.com/mig-3g.20gb",
        }
        assert devices == ({expected[pool]: 1} if pool in expected else {})
        assert ("nvidia.com/gpu" in str(spec.get("tolerations"))) == bool(devices)


def test_the_job_of_deployments_is_a_new_one_with_every_upgrade(chart, tmp_path):
    def name(chart, *settings):
        found = objects(chart, CHART / "values.yaml", *settings)
        (job,) = (one["metadata"]["name"] for one in found if one["kind"] == "Job")
        return job

    assert name(chart) == name(chart)
    assert name(chart) != name(chart, "--set", "images.cpu.tag=newer")
    # Else one that failed, as the Secret was wrong, would not run again once that is mended.
    template = "templates/deploy.yaml"
    assert name(chart) != name(
        changed(chart, tmp_path / "next", template, ".Release.Revision", "2")
    )


def test_the_job_of_deployments_reaches_prefect_as_the_pool_cpu_does(chart):
    certificate = {"name": "PREFECT_API_SSL_CERT_FILE", "value": "/etc/ca/ca.pem"}
    volume, mount = (
        {"name": "ca", "secret": {"secretName": "ca"}},
        {"name": "ca", "mountPath": "/etc/ca"},
    )
    pool = {
        "extraEnv": [certificate], "extraVolumes": [volume], "extraVolumeMounts": [mount],
        "nodeSelector": {"kind": "cpu"}, "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "priorityClassName": "batch",
    }  # fmt: skip
    found = objects(chart, CHART / "values.yaml", "--set-json", f"pools.cpu={json.dumps(pool)}")
    (spec,) = (one["spec"]["template"]["spec"] for one in found if one["kind"] == "Job")
    (container,) = spec["containers"]
    assert certificate in container["env"]
    assert mount in container["volumeMounts"]
    assert volume in spec["volumes"]
    for name in "nodeSelector", "tolerations", "priorityClassName":
        assert spec[name] == pool[name]


def test_dashboards_ask_for_jobs_that_prometheus_has(chart):
    monitors = [
        one["spec"]["endpoints"][0]["relabelings"][0]["replacement"]
        for one in objects(chart, CHART / "ci" / "keda-values.yaml")
        if one["kind"] == "ServiceMonitor"
    ]
    compose = (REPOSITORY / "deploy" / "compose.yaml").read_text()
    named = set(re.findall(r"- job_name: (\w+)", compose))
    asked = {
        job
        for file in (CHART / "dashboards").glob("*.json")
        for job in re.findall(r'job=\\"(\w+)', file.read_text())
    }
    assert asked == named
    assert set(monitors) == named | {"triton"}


def test_pods_are_not_replaced_because_the_chart_has_a_new_version(pods):
    for labels, _ in pods:
        if labels["app.kubernetes.io/name"] == "sam2-autolabel":
            assert not {"app.kubernetes.io/version", "helm.sh/chart"} & set(labels)


def containers(pods, image=""):
    return [
        (labels, spec, one)
        for labels, spec in pods
        for one in spec["containers"]
        if image in (one["image"] or "")
    ]


def test_kubernetes_knows_every_field_of_every_object(rendered):
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered]
    assert len(names) == len(set(names))
    for one in rendered:
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, "1.31", strict=True)


def test_every_container_is_hardened(pods):
    for labels, spec, container in containers(pods):
        pod, own = spec["securityContext"], container["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"]["drop"] == ["ALL"]
        assert "add" not in own["capabilities"]
        if labels["app.kubernetes.io/name"] != "prefect-worker":  # which asks Kubernetes for pods
            assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all(set(volume) - {"name"} <= VOLUMES for volume in spec.get("volumes", ()))
        assert re.fullmatch(r"[\w./-]+:[\w.-]+(@sha256:[0-9a-f]{64})?", container["image"])
        assert container["resources"]["requests"]["memory"]
        assert container["resources"]["limits"]["memory"]


def test_only_who_needs_the_bucket_has_its_role(pods):
    for labels, spec in pods:
        if labels["app.kubernetes.io/name"] == "sam2-autolabel":
            needs = labels["app.kubernetes.io/component"] in {"worker", "app"}
            account = "drives-autolabel" if needs else "drives-autolabel-no-role"
            assert spec["serviceAccountName"] == account


def test_all_is_denied_and_whoever_listens_is_named_by_a_policy(rendered, pods):
    policies = [one["spec"] for one in rendered if one["kind"] == "NetworkPolicy"]
    (deny,) = [one for one in policies if one["podSelector"] == {}]
    assert "ingress" not in deny
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    monitored = any(one["kind"] == "ServiceMonitor" for one in rendered)
    for labels, _, container in containers(pods):
        (policy,) = [one for one in policies if selects(one["podSelector"], labels)]
        opened = {port["port"] for rule in policy["ingress"] or () for port in rule["ports"]}
        listens = {port["containerPort"]: port.get("name") for port in container.get("ports", ())}
        if not monitored:
            listens = {port: name for port, name in listens.items() if name != "metrics"}
        # The kubelet alone asks for health; and the App is reached by port-forward without Ingress.
        allowed = {"http", "app"}
        assert opened <= set(listens)
        assert {name for port, name in listens.items() if port not in opened} <= allowed
        for rule in policy["egress"] or ():  # whom it may speak with lets it in
            for peer in rule["to"]:
                if (selector := peer.get("podSelector")) is not None:
                    assert any(
                        selects({"matchLabels": selector["matchLabels"]}, other)
                        for other, _ in pods
                    )


def test_storage_is_no_private_address():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    (peer,) = values["networkPolicy"]["storage"]["peers"]
    kept = [ipaddress.ip_network(one) for one in peer["ipBlock"]["except"]]
    for inside in "10.1.2.3", "100.100.1.1", "169.254.169.254", "172.20.0.1", "192.168.1.1":
        assert any(ipaddress.ip_address(inside) in one for one in kept)


def selects(selector, labels):
    return bool(selector) and selector["matchLabels"].items() <= labels.items()


def constants(*roots):
    """Every string in Python code: names of variables that it reads are among them."""
    found = set()
    for root in roots:
        for file in Path(root).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


@pytest.fixture(scope="module")
def read_by_code():
    import botocore
    from prefect.settings.legacy import _get_settings_fields
    from prefect.settings.models.root import Settings

    product = constants(*(REPOSITORY / one for one in ("sam2_core", "tasks", "flows")))
    cloud = constants(Path(botocore.__file__).parent)
    service = {f"{one}_URL" for one in cloud if one.startswith("AWS_ENDPOINT")}
    return product | cloud | service | set(_get_settings_fields(Settings))


def test_each_variable_is_one_that_the_code_reads(pods, read_by_code):
    for labels, _, container in containers(pods):
        if labels.get("app.kubernetes.io/component") not in {"postgresql", "mongodb"}:
            names = [one["name"] for one in container.get("env") or ()]
            assert len(names) == len(set(names))
            assert set(names) <= read_by_code | OF_PREFECTS_CHARTS


def test_each_port_and_command_is_the_programs(pods):
    known = {"http": HTTP_PORT, "grpc": HTTP_PORT + 1, "app": DEFAULT_PORT}
    for _, spec, container in containers(pods, "sam2-autolabel"):
        ports = {one["name"]: one["containerPort"] for one in container.get("ports", ())}
        given = {one["name"]: one.get("value", "") for one in container.get("env") or ()}
        metrics = METRICS_PORT.read(given) or HTTP_PORT + 2
        assert ports.items() <= (known | {"metrics": metrics}).items()
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        if words[:1] == ["autolabel"]:
            command = cli.get_command(None, words[1])
            options = command.make_context(words[1], words[2:]).params
            assert options.get("host", given.get("AUTOLABEL_METRICS_HOST")) == "0.0.0.0"
        if words[1:2] == ["worker"] or container["name"] == "prefect-job":
            assert spec["terminationGracePeriodSeconds"] == GRACE_S + STOP_S


def test_each_volume_is_a_folder_that_the_code_writes(pods):
    image = (REPOSITORY / "deploy" / "docker" / "Dockerfile").read_text()
    assert f"AUTOLABEL_CACHE={CACHE}" in image
    assert "--create-home --uid 10001 autolabel" in image
    writable = {"/tmp", "/home/autolabel", CACHE, "/dev/shm", "/etc/autolabel"}
    for _, spec, container in containers(pods, "sam2-autolabel"):
        mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
        extra = {path for path in mounts if path.startswith("/drives")}  # of an example
        assert {"/tmp", "/home/autolabel", CACHE} <= set(mounts)
        below = {path for path in mounts if path.startswith(f"{CACHE}/")}
        assert {Path(path).name for path in below} <= set(KINDS)
        assert set(mounts) - below - extra <= writable
        assert {one["name"] for one in mounts.values()} == {one["name"] for one in spec["volumes"]}


def test_every_claim_is_made(rendered, pods):
    claims = {one["metadata"]["name"] for one in rendered if one["kind"] == CLAIM}
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, spec in pods
        for volume in spec.get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    assert used - {"drives"} == claims  # that of an example


def test_a_newer_version_and_its_rollback_find_their_engines_in_the_claim_that_was_there(
    chart, tmp_path
):
    """Helm deletes claims that a newer version does not have, and a rollback does not find them."""
    claims = []
    for version in "0.1.0", "0.2.0":
        other = changed(chart, tmp_path / version, "Chart.yaml", 'n: "0.1.0"', f'n: "{version}"')
        found = objects(other, CHART / "ci" / "keda-values.yaml")
        claims.append({one["metadata"]["name"] for one in found if one["kind"] == CLAIM})
        mounts = [one["volumeMounts"] for _, _, one in containers(all_pods(found))]
        folders = [{one["subPath"] for one in of if one["name"] == "engines"} for of in mounts]
        expected = {f"h100/{version}/{one}" for one in ("engines", "torch", "certificates")}
        assert [one for one in folders if one] == [expected] * 2  # a worker's and Triton's
    assert claims[0] == claims[1]


def changed(chart, folder, name, old, new):
    """A copy of the chart with other text in one file."""
    shutil.copytree(chart, folder)
    assert (folder / name).read_text().count(old) == 1
    (folder / name).write_text((folder / name).read_text().replace(old, new))
    return folder


def test_leases_of_prefects_server_outlive_its_pod(rendered, pods):
    from prefect.server.concurrency.lease_storage.filesystem import ConcurrencyLeaseStorage
    from prefect.settings import PREFECT_HOME, temporary_settings

    with temporary_settings({PREFECT_HOME: "/home/prefect/.prefect"}):
        folder = ConcurrencyLeaseStorage().storage_path
    (spec,) = (one for of, one in pods if of["app.kubernetes.io/name"] == "prefect-server")
    claims = {
        one["name"]: one["persistentVolumeClaim"]["claimName"]
        for one in spec["volumes"]
        if "persistentVolumeClaim" in one
    }
    kept = [
        claims[one["name"]]
        for one in spec["containers"][0]["volumeMounts"]
        if one["name"] in claims and folder.is_relative_to(one["mountPath"])
    ]
    made = [one["metadata"]["name"] for one in rendered if one["kind"] == CLAIM]
    assert len(kept) == 1
    assert kept[0] in made


def test_the_secret_has_what_the_page_says_and_no_value_is_a_password(rendered):
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    described = set(re.findall(r"^ +--from-literal=(\w+)=", page, re.MULTILINE))
    text = json.dumps(rendered)
    asked = set(re.findall(r'"secretKeyRef": \{"key": "(\w+)", "name": "autolabel"\}', text))
    asked |= set(re.findall(r'"secretKeyRef": \{"name": "autolabel", "key": "(\w+)"\}', text))
    assert asked
    assert asked <= described
    assert "kind: Secret" not in (yaml.safe_dump(rendered))


def test_the_lock_is_of_these_dependencies(chart, tmp_path, monkeypatch):
    # No repository is known: what helm finds wrong first is the lock, where it is of others.
    monkeypatch.setenv("HELM_REPOSITORY_CONFIG", str(tmp_path / "none"))
    refused = "no repository definition for https://prefecthq.github.io/prefect-helm"
    assert refused in helm("dependency", "build", chart).stderr


def test_prefects_server_has_the_settings_of_a_workstation(chart):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    given = {one["name"]: one.get("value") for one in values["prefect-server"]["server"]["env"]}
    assert SETTINGS.items() <= given.items()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("pools.gpu.replica=3", "Additional property replica"),
        ("postgresql.password=secret", "Additional property password"),
        ("objectStorage.endpoint=http://user:secret@s3", "endpoint"),
        ("pools.cpu.extraEnv[0].name=API_TOKEN,pools.cpu.extraEnv[0].value=x", "extraEnv"),
        ("app.ingress.enabled=true,app.ingress.host=review.example.com", "tlsSecretName"),
        ("images.gpu.digest=latest", "digest"),
        ("global.existingSecret=other", "has to name the Secret other"),
        ("serviceAccount.create=false", "serviceAccount.name"),
        ("prefect-server.server.env[0].name=A", "Prefect needs PREFECT_SERVER_API_AUTH_STRING"),
        ("prefect-server.server.extraVolumes=null", "Prefect needs leases"),
        ("prefect-server.server.extraVolumeMounts[0].name=A", "Prefect needs leases"),
        ("prefect-server.server.replicaCount=2", "has to be one pod"),
        ("prefect-server.server.autoscaling.enabled=true", "has to be one pod"),
        ("prefect-server.backgroundServices.runAsSeparateDeployment=true", "has to be one pod"),
        ("prefect-server.server.updateStrategy.type=RollingUpdate", "has to be one pod"),
        ("prefect-server.fullnameOverride=other", "know it as prefect-server"),
        ("prefect-server.nameOverride=other", "know it as prefect-server"),
        ("claims.prefect.existingClaim=mine", "claims.prefect"),
        ("prefect-server.enabled=false", "extraEgress.deploy has to open the way to prefectApiUrl"),
        ("postgresql.enabled=false", "extraEgress.prefect has to open the way to its database"),
        ("mongodb.enabled=false", "extraEgress.worker has to open the way to MongoDB"),
        (
            "mongodb.enabled=false,networkPolicy.extraEgress.worker[0].to[0]=x",
            "extraEgress.app has to open the way to MongoDB",
        ),
        (
            "postgresql.enabled=false,networkPolicy.enabled=false,pools.gpu.keda.enabled=true",
            "keda.host has to name Prefect's database for pools.gpu",
        ),
        (
            "prefect-worker.enabled=true,pools.gpu.enabled=false,networkPolicy.enabled=false,"
            "prefectApiUrl=https://prefect.example.com/api",
            "apiUrl has to be https://prefect.example.com/api",
        ),
        ("pools.gpu.device=gpu", "pools.gpu.device"),
        ("prefect-worker.enabled=true", "set pools.gpu.enabled to false"),
        ("prefect-worker.enabled=true,pools.gpu=null", "from pools.gpu"),
        ("prefect-worker.enabled=true,pools.gpu.enabled=false", "networkPolicy.apiServer has to"),
        ("app.tolerations[0].efect=NoSchedule", "efect"),
        ("triton.resources.requests.memory=lots", "memory"),
        ("podDisruptionBudget.maxUnavailable=all", "maxUnavailable"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_installed(chart, setting, told):
    refused = helm("template", "drives", chart, "--set", setting)
    assert refused.returncode != 0
    assert told in refused.stderr


def test_the_schema_knows_every_value():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"])
    assert set(values["poolDefaults"]) == set(schema["$defs"]["pool"]["properties"])
    assert {CPU_POOL, GPU_POOL} == set(values["pools"])


def test_alerts_and_dashboards_ask_what_prometheus_understands():
    from promql_parser import parse

    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    asked = [rule["expr"] for group in groups for rule in group["rules"]]
    for file in (CHART / "dashboards").glob("*.json"):
        panels = json.loads(file.read_text())["panels"]
        asked += [target["expr"] for panel in panels for target in panel["targets"]]
    for one in asked:
        parse(one)
