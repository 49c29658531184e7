"""The chart, rendered by the real helm: valid, hardened, closed, and true to the code.

Prefect's own charts come from a Helm repository: where `helm dependency build` has not brought
them, `fake_prefect_chart` shows what they get.
"""

import ast
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
from flows.machine.programs import CPU_POOL, GPU_POOL, GRACE_S
from flows.machine.worker import STOP_S
from flows.server.process import SETTINGS
from sam2_core.machine import METRICS_PORT
from tasks.review.app import DEFAULT_PORT
from tests.conftest import REPOSITORY

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`make torch` installs it")
HELM = shutil.which("helm", path=Path(sys.executable).parent)
pytestmark = [pytest.mark.ci, pytest.mark.skipif(HELM is None, reason="`make torch` installs helm")]

CHART = REPOSITORY / "deploy" / "chart"
VALUES = [CHART / "values.yaml", *sorted((CHART / "ci").glob("*.yaml"))]
# Of those that the Pod Security Standard `restricted` allows.
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
CACHE = "/var/cache/autolabel"
OF_PREFECTS_CHARTS = {
    "HOME", "PREFECT_KUBERNETES_CLUSTER_UID", "PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES",
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
    made = helm("template", "drives", chart, "-n", "night", "-f", request.param)
    assert made.returncode == 0, made.stderr
    return [one for one in yaml.safe_load_all(made.stdout) if one]


@pytest.fixture
def pods(rendered):
    """Labels and specification of every pod, also of those that Prefect makes for flow runs."""
    found = []
    for one in rendered:
        spec = one.get("spec", {})
        template = spec.get("template") or spec.get("jobTargetRef", {}).get("template")
        if one["kind"] == "ConfigMap" and "baseJobTemplate.json" in one["data"]:
            template = job_pod(json.loads(one["data"]["baseJobTemplate.json"]))
        if template:
            found.append((template["metadata"]["labels"], template["spec"]))
    return found


def job_pod(template):
    """A pod of a flow run, with the defaults of the form."""
    defaults = {k: one.get("default") for k, one in template["variables"]["properties"].items()}
    manifest = template["job_configuration"]["job_manifest"]["spec"]["template"]
    text = re.sub(
        r'"\{\{ *(\w+) *\}\}"', lambda found: json.dumps(defaults[found[1]]), json.dumps(manifest)
    )
    return json.loads(text)


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
            names = [one["name"] for one in container.get("env") or ()]  # none in a flow run's pod
            assert len(names) == len(set(names))
            assert set(names) <= read_by_code | OF_PREFECTS_CHARTS


def test_each_port_and_command_is_the_programs(pods):
    serve = {one.name: one.default for one in cli.get_command(None, "serve").params}
    known = {
        "http": serve["http_port"], "grpc": serve["grpc_port"], "app": DEFAULT_PORT,
    }  # fmt: skip
    for _, spec, container in containers(pods, "sam2-autolabel"):
        ports = {one["name"]: one["containerPort"] for one in container.get("ports", ())}
        given = {one["name"]: one.get("value", "") for one in container.get("env") or ()}
        metrics = METRICS_PORT.read(given) or serve["metrics_port"]
        assert ports.items() <= (known | {"metrics": metrics}).items()
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        if words[:1] == ["autolabel"]:
            command = cli.get_command(None, words[1])
            options = command.make_context(words[1], words[2:]).params
            assert options.get("grace", GRACE_S) == GRACE_S
            assert options.get("host", given.get("AUTOLABEL_METRICS_HOST")) == "0.0.0.0"
        if words[1:2] == ["worker"]:
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


def test_engines_are_kept_by_gpu_and_version_and_every_claim_is_made(rendered, pods):
    claims = {one["metadata"]["name"] for one in rendered if one["kind"] == "PersistentVolumeClaim"}
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, spec in pods
        for volume in spec.get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    assert used - {"drives"} == claims  # that of an example
    for labels, spec in pods:
        for volume in spec.get("volumes", ()):
            if volume["name"] == "engines" and "app.kubernetes.io/version" in labels:
                version = labels["app.kubernetes.io/version"].replace(".", "-")
                name = volume["persistentVolumeClaim"]["claimName"]
                assert re.fullmatch(rf"drives-autolabel-engines-[a-z0-9-]+-{version}", name)


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
