"""Dockerfiles and the workflow that builds them, as far as that can be told without an engine."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY

BIN = Path(sys.executable).parent
DOCKERFILE = REPOSITORY / "deploy" / "docker" / "Dockerfile"
WORKFLOW = REPOSITORY / ".github" / "workflows" / "release.yml"


def tool(*command):
    """Run a program of this environment."""
    if not (BIN / command[0]).exists():
        pytest.skip(f"`make dev` installs {command[0]}")
    words = [BIN / command[0], *command[1:]]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPOSITORY)


def schema(name, *files):
    return ("check-jsonschema", "--builtin-schema", f"vendor.{name}", *map(str, files))


@pytest.mark.ci
def test_linters_have_nothing_to_say():
    for command in (
        ("hadolint", DOCKERFILE),
        # A file that the user names, and variables that each node reads.
        ("shellcheck", "--exclude=SC1090,SC2016", *(REPOSITORY / "deploy" / "slurm").iterdir()),
        ("zizmor", "--offline", "--no-progress", ".github"),
        schema("github-workflows", *(REPOSITORY / ".github" / "workflows").glob("*.yml")),
        schema("dependabot", ".github/dependabot.yml"),
        schema("compose-spec", *(REPOSITORY / "deploy").rglob("compose*.yaml")),
    ):
        done = tool(*command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_images_begin_pinned_end_as_nobody_and_are_those_of_chart_compose_and_workflow():
    text = DOCKERFILE.read_text()
    stages = re.findall(r"^FROM (\S+) AS (\S+)", text, re.MULTILINE)
    names = [name for _, name in stages]
    outside = [source for source, _ in stages if source not in names]
    assert len(outside) == 1
    assert re.search(r"@sha256:[0-9a-f]{64}$", outside[0])
    last = [name for name in names if dict(map(reversed, stages))[name] == "runtime"]
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["10001"]
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["image"]
    assert set(job["strategy"]["matrix"]["target"]) == set(last)
    assert job["needs"] == "test"
    assert [*REPOSITORY.glob("deploy/**/Dockerfile*")] == [DOCKERFILE]
    for file in DOCKERFILE.parents[1].glob("compose*.yaml"):
        builds = [
            service["build"]
            for service in yaml.safe_load(file.read_text())["services"].values()
            if "build" in service
        ]
        assert builds
        for one in builds:
            assert one["target"] in last
            assert one.get("dockerfile", "deploy/docker/Dockerfile") == "deploy/docker/Dockerfile"
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((REPOSITORY / one).exists() for one in copied.split())


def test_every_package_of_an_image_has_a_hash_and_no_lock_names_it_twice():
    locked = [
        dict(re.findall(r"^([\w.-]+)(?:\[.*?\])?==(\S+)", text, re.MULTILINE))
        for name in ("requirements.lock", "deploy/docker/requirements-gpu.lock")
        for text in [(REPOSITORY / name).read_text()]
    ]
    assert "onnx" in locked[0]
    assert {"cuda-bindings", "nvidia-cudnn-cu13"} <= set(locked[1])
    assert not locked[0].keys() & locked[1].keys()
    assert DOCKERFILE.read_text().count("--require-hashes") == len(locked)


@pytest.mark.ci
def test_the_list_of_packages_is_cyclonedx_and_complete(tmp_path):
    (line,) = set(re.findall(r"cyclonedx-py environment .*", DOCKERFILE.read_text()))
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    ours = next(path for path in map(Path, sys.path) if (path / "click").is_dir())
    for one in ours.glob("click-*.dist-info"):
        shutil.copytree(one, site / one.name)
    at = {"/opt/autolabel/bin/python": folder / "bin" / "python"}
    at["/opt/autolabel/sbom.cdx.json"] = tmp_path / "sbom.cdx.json"
    done = tool(*(str(at.get(word, word)) for word in line.split()))
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert made["bomFormat"] == "CycloneDX"
    assert made["metadata"]["component"]["name"] == "sam2-autolabel"
    assert [one["name"] for one in made["components"]] == ["click"]
