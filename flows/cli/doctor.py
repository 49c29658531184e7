"""`autolabel doctor`: what this machine has, what it lacks, and what to do."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import click

from flows.cli.common_options import check_writable, json_option, notify_option, print_json
from flows.machine.services import running_api
from flows.server.api import configured_api
from sam2_core.backend_choice import cuda_provider_problem, has_tensorrt, tensorrt_problem
from sam2_core.cache import cache_folder
from sam2_core.devices import compute_capability, cuda_devices, no_gpu
from sam2_core.machine import gpu_names, how_to_install, usable_cores
from sam2_core.redaction import redact
from sam2_core.types import AutolabelError
from tasks.errors import error_text
from tasks.processes import answers

LOW_DISK_GB = 5.0


@dataclass(frozen=True)
class Finding:
    """One finding, without secrets.

    Attributes:
        name: what.
        state: ok; note for what labeling works without; missing for what it does not.
        found: what is there.
        advice: what to do, "" when nothing.

    """

    name: str
    state: Literal["ok", "note", "missing"]
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", redact(self.found))


def examine() -> list[Finding]:
    """Run every check; one that fails unexpectedly is a finding, too."""
    looks: list[Callable[[], Finding]] = [
        _python, _processor, _onnxruntime, _gpu, *([_tensorrt] if has_tensorrt() else []), _models,
        _database, _prefect, _cache, _credentials,
    ]  # fmt: skip
    findings = []
    for look in looks:
        try:
            findings.append(look())
        except Exception as error:  # noqa: BLE001 - the doctor reports, it does not die
            name = look.__name__.removeprefix("_")
            findings.append(Finding(name, "missing", error_text(error)))
    return findings


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.prefix}"
    return Finding("python", "ok", found)


def _processor() -> Finding:
    import psutil

    memory_gib = psutil.virtual_memory().total / 2**30
    return Finding("processor", "ok", f"{usable_cores()} cores, {memory_gib:.0f} GiB of memory")


def _onnxruntime() -> Finding:
    import onnxruntime

    names = [
        name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers()
    ]
    return Finding("onnxruntime", "ok", f"{onnxruntime.__version__}, built for {', '.join(names)}")


def _gpu() -> Finding:
    if not cuda_devices():
        return Finding("gpu", "note", no_gpu() or "no NVIDIA GPU: the model runs on the CPU")
    names = "; ".join(gpu_names()) or f"{cuda_devices()} NVIDIA GPUs"
    if missing := cuda_provider_problem():
        return Finding("gpu", "note", f"{names}; {missing}", how_to_install("gpu"))
    return Finding("gpu", "ok", names)


def _tensorrt() -> Finding:
    if problem := tensorrt_problem():
        return Finding("tensorrt", "note", problem, "--backend auto takes another one")
    from sam2_core.backends.tensorrt_backend import engines_folder
    from sam2_core.backends.tensorrt_engines import NAME_AND_VERSION, supported_capabilities

    folders = sorted({path.parent.name for path in engines_folder().glob("*/*.engine")})
    found = f"{NAME_AND_VERSION}, engines: {', '.join(folders) or 'none yet'}"
    if not compute_capability():
        advice = f"autolabel models build --for: any of {', '.join(supported_capabilities())}"
        return Finding("tensorrt", "note", f"{found}; no GPU to run them", advice)
    return Finding("tensorrt", "ok", found)


def _models() -> Finding:
    from sam2_core.backends.model_folder import ModelFolder
    from sam2_core.model_download import verify
    from tasks.boxes.detector_files import BUNDLED_FOLDER

    cache = cache_folder()
    exported = list((cache / "models").glob("*/*/*/model.json"))
    try:
        for path in (*BUNDLED_FOLDER.glob("*/*/model.json"), *exported):
            ModelFolder.open(path.parent).check()
        fetched = (*cache.glob("checkpoints/*"), *cache.glob("detectors/*"))
        for path in (*BUNDLED_FOLDER.glob("*.onnx"), *fetched):
            verify(path)
    except (AutolabelError, OSError) as error:
        advice = "of those that came with sam2-autolabel: install it again"
        return Finding("models", "missing", str(error), advice)
    names = sorted({
        f"{path.parts[-4]} with random weights, for tests" if path.parts[-3].startswith("random-")
        else path.parts[-4]
        for path in exported
    })  # fmt: skip
    advice = "" if names else "for Meta's SAM 2.1: autolabel models download tiny"
    return Finding("models", "ok", ", ".join(["compact (bundled)", *names]), advice)


def _database() -> Finding:
    from pymongo.errors import PyMongoError

    from tasks.dataset.database import URI_VARIABLE, ensure_database, version_of

    try:
        uri = ensure_database()
        found = f"{URI_VARIABLE}={uri}"
        server = version_of(uri, 3000)
    except AutolabelError as error:
        return Finding("database", "missing", str(error), f"or set {URI_VARIABLE}")
    except (PyMongoError, ValueError) as error:
        return Finding("database", "missing", f"{found} does not answer: {type(error).__name__}")
    return Finding("database", "ok", f"MongoDB {server}: {found}")


def _prefect() -> Finding:
    from flows.server.postgres import size_bytes

    installed, url = version("prefect"), configured_api()
    if not url:
        own, size = running_api(), f"{size_bytes() / 1e6:,.0f} MB"
        runs = f"`autolabel up` runs a server at {own}, its" if own else (
            "no server set, and none is needed to label; its"
        )  # fmt: skip
        return Finding("prefect", "ok", f"{installed}; {runs} database takes {size}")
    if answers(f"{url}/health"):
        return Finding("prefect", "ok", f"{installed}; server {url} answers")
    advice = "start it with `autolabel up` or unset PREFECT_API_URL"
    return Finding("prefect", "missing", f"{url} does not answer", advice)


def _cache() -> Finding:
    folder = cache_folder()
    try:
        check_writable(folders=[folder])
    except AutolabelError as error:
        return Finding("cache", "missing", str(error), "set AUTOLABEL_CACHE to another folder")
    free = shutil.disk_usage(folder).free / 1e9
    advice = "videos, frames and engines are kept there" if free < LOW_DISK_GB else ""
    return Finding("cache", "note" if advice else "ok", f"{folder}, {free:.0f} GB free", advice)


def _credentials() -> Finding:
    """Say which S3 credentials are found, never what they are."""
    of = os.environ.get
    shared = of("AWS_SHARED_CREDENTIALS_FILE") or str(Path.home() / ".aws" / "credentials")
    sources = {
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY": of("AWS_ACCESS_KEY_ID")
        and of("AWS_SECRET_ACCESS_KEY"),
        f"AWS_PROFILE {of('AWS_PROFILE')}": of("AWS_PROFILE"),
        shared: Path(shared).is_file(),
        "a role of this container": of("AWS_WEB_IDENTITY_TOKEN_FILE")
        or of("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    }
    found = [name for name, there in sources.items() if there]
    if not found:
        advice = "for s3:// sources set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE"
        return Finding("credentials", "note", "none for S3 (local files need none)", advice)
    endpoint = of("AWS_ENDPOINT_URL_S3") or of("AWS_ENDPOINT_URL")
    where = f"; endpoint {endpoint}" if endpoint else ""
    return Finding("credentials", "ok", f"S3: {', '.join(found)}{where}")


@click.command()
@notify_option
@json_option
def command(notify: tuple[str, ...], as_json: bool) -> None:
    """Check Python, ONNX Runtime, GPUs, models, MongoDB, the cache and credentials.

    With --notify it sends a test message.

    Exit code 0: labeling works here; 1: something required is missing.
    """
    from rich.markup import escape

    from flows.cli.display import stderr_console

    findings = examine()
    if notify:
        from flows.server.notify import notify as send

        problems = "; ".join(send(notify, "autolabel: a test", ["A bad night is told here."]))
        sent = Finding("notify", "ok", "a test message was sent")
        findings.append(Finding("notify", "missing", problems) if problems else sent)
    console = stderr_console()
    marks = {"ok": "[green]✓[/]", "note": "[yellow]•[/]", "missing": "[red]✗[/]"}
    for finding in findings:
        console.print(f"{marks[finding.state]} [bold]{finding.name:<12}[/] {escape(finding.found)}")
        if finding.advice:
            console.print(f"  {'':<12} → {escape(finding.advice)}")
    broken = any(finding.state == "missing" for finding in findings)
    print_json(
        as_json,
        {"ok": not broken, "findings": {finding.name: asdict(finding) for finding in findings}},
    )
    raise SystemExit(1 if broken else 0)
