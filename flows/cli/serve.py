"""`autolabel serve`: models on a Triton server of this machine, without containers."""

import contextlib
import ipaddress
import json
import secrets
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flows.cli.commands import Command
from flows.cli.common_options import json_option, port_option, print_json, refuse, to_option
from flows.cli.display import say, stderr_console
from flows.cli.options import options_of
from flows.params import LabelParams
from sam2_core.backend_choice import precision_for
from sam2_core.images import open_image
from sam2_core.serving.client import Sam2Client
from sam2_core.serving.contract import URLS_VARIABLE
from sam2_core.serving.http_front import answering, demo_page, listen, triton_http
from sam2_core.serving.repository import RepositoryOptions, models_in, write_repository
from sam2_core.serving.server_model import ModelSettings
from sam2_core.serving.server_process import (
    ServerOptions,
    TritonServer,
    find_server,
    new_prefix,
    own_folder,
    remove_left_over,
    remove_shared_memory,
    socket_of,
)
from sam2_core.types import AutolabelError
from tasks.boxes.detectors import load_detector
from tasks.masks.model import choose_model
from tasks.review.door import NAMES, TOKEN, Door, bind

_TLS_FILES = ("certificate", "key", "clients")
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_LEAST_SCORE = 0.3  # of objects that a click on the demo page may mean
HTTP_PORT = 8000


def _numbers(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise click.BadParameter(f"expected numbers separated by commas, got {text!r}") from None


@click.command(cls=Command, first="backend precision port host demo as_json")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@options_of(LabelParams, only=["backend", "precision"])
@port_option
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--demo", metavar="PICTURE", type=_FILE, help="Also serve a page to click on this picture."
)
@click.option(
    "--threads", type=click.IntRange(0), metavar="N", default=0, help="CPU threads; 0: every core."
)
@click.option(
    "--gpus", callback=_numbers, metavar="0,1", help="CUDA devices, each with two processes."
)
@click.option(
    "--cache-mb", type=click.IntRange(16), metavar="MB", default=1024,
    help="Memory for open images; the least recently used go first.",
)  # fmt: skip
@click.option(
    "--tls-certificate",
    type=_FILE,
    metavar="FILE",
    help="Certificate of this server; all ports then speak TLS.",
)
@click.option("--tls-key", type=_FILE, metavar="FILE", help="Key of that certificate.")
@click.option(
    "--tls-clients", type=_FILE, metavar="FILE", help="CA of the clients that may connect."
)
@to_option()
@click.option(
    "--repository", type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Serve all models of a repository that --to has written.",
)  # fmt: skip
@json_option
def command(models: tuple[str, ...], **options: Any) -> None:
    """Serve SAM 2 to labeling on other machines and to interactive tools.

    A MODEL is one that `autolabel label --model` takes; with `:whole` behind it a model of
    close-ups takes whole frames. By default: compact, compact:whole.

    HTTP is on port 8000 or --port, gRPC on the next one, metrics on the one after that.

    With --to, nothing is served: the models are written as a Triton repository, with their graphs,
    for a server with sam2-autolabel on any machine. What is there gets a new version.
    """
    options |= {name: options[name] or "auto" for name in ("backend", "precision")}
    models = models or () if options["repository"] else models or ("compact", "compact:whole")
    _refuse_wrong_options(models, options)
    if options["target"]:
        folder = Path(options["target"])
        names = _written(folder, models, options, with_graphs=True)
        if not print_json(options["as_json"], {"folder": str(folder), "models": names}):
            for name in names:
                say(f"{name}: {folder / name}")
        return
    console, prefix = stderr_console(), new_prefix()
    remove_left_over()
    installed = find_server()
    picture = options["demo"]
    if picture:
        open_image(picture)  # errors come before the server starts
    host = options["host"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(own_folder()))
        repository = options["repository"] or folder / "repository"
        names = _written(repository, models, options)
        first = HTTP_PORT if options["port"] is None else options["port"]
        http, grpc, metrics = (
            stack.enter_context(listen(host, first and first + number, f"{what}, see --port"))
            for number, what in enumerate(("HTTP", "gRPC", "metrics"))
        )
        server_options = ServerOptions(
            host, grpc.getsockname()[1], *(options[f"tls_{name}"] for name in _TLS_FILES)
        )
        grpc.close()  # Triton listens there
        stack.callback(remove_shared_memory, prefix)
        server = TritonServer(
            installed, repository, names, server_options, prefix=prefix,
            log=folder / "server.log", tell=console.print,
        )  # fmt: skip
        stack.callback(server.stop)
        for number in (signal.SIGINT, signal.SIGTERM):  # the waiting thread then continues
            signal.signal(number, lambda *_: server.end())
        with console.status("starting the server"):
            server.wait_ready()
        if not server.told_to_end:
            front = triton_http(socket_of(prefix, "http"), socket_of(prefix, "metrics"))
            door = Door(front, is_ours=_names_of(host))
            stack.enter_context(answering(door, http, metrics, **_tls_of(options)))
            tls = "s" if options["tls_certificate"] else ""
            at = "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - as asked for
            grpc_url = f"grpc{tls}://{at}:{server_options.grpc_port}"
            where = {}
            if picture:
                where["page"] = _serve_page(picture, grpc_url, names, stack)
            where |= {
                "grpc": grpc_url,
                "http": f"http{tls}://{at}:{http.getsockname()[1]}",
                "metrics": f"http{tls}://{at}:{metrics.getsockname()[1]}/metrics",
            }
            for name, address in (where | {"models": ", ".join(names)}).items():
                say(f"{name:<8} {address}", err=True)  # with the token of the page's link
            console.print(
                f"Ctrl-C ends it. Label with it: [bold]{URLS_VARIABLE}={where['grpc']} autolabel "
                "label ... --backend triton"
            )
            if options["as_json"]:  # on one line, for what waits for it
                ready = where | {"models": names, "pid": server.process.pid}
                say(json.dumps(ready))
        server.wait()


def _names_of(host: str) -> Callable[[str], bool]:
    """Return which names requests may call this server by.

    Other pages reach it under names of their own (DNS rebinding), never under an address.
    """
    if host in NAMES:
        return NAMES.__contains__
    names = {*NAMES, host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}

    def is_ours(name: str) -> bool:
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name.strip("[]")))
        return name in names

    return is_ours


def _tls_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return what HTTP and metrics speak: TLS, and with whom, as gRPC does."""
    if not options["tls_certificate"]:
        return {}
    found = {"ssl_certfile": options["tls_certificate"], "ssl_keyfile": options["tls_key"]}
    if options["tls_clients"]:
        found |= {"ssl_ca_certs": options["tls_clients"], "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return found


def _refuse_wrong_options(models: tuple[str, ...], options: dict[str, Any]) -> None:
    """Refuse what the server would refuse later, and in words of its own."""
    certificate, key = options["tls_certificate"], options["tls_key"]
    refuse(
        {
            "--tls-certificate and --tls-key go together": bool(certificate) != bool(key),
            "--tls-clients needs --tls-certificate and --tls-key": (
                options["tls_clients"] and not certificate
            ),
            "--demo is for a look on this machine: leave the TLS options out": (
                options["demo"] and certificate
            ),
            "--repository serves the models in it: name none": models and options["repository"],
            "--to writes a repository, --repository serves one": (
                options["target"] and options["repository"]
            ),
        }
    )
    try:
        if certificate:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        if options["tls_clients"]:
            ssl.create_default_context(cafile=options["tls_clients"])
    except ssl.SSLError as error:
        raise click.UsageError(
            f"the TLS files are not PEM files, or the key belongs to another certificate: {error}"
        ) from error


def _written(
    repository: Path, models: tuple[str, ...], options: dict[str, Any], *, with_graphs: bool = False
) -> list[str]:
    """Return what to load; write a repository unless one is given."""
    if options["repository"]:
        found = models_in(repository)
        if not found:
            raise AutolabelError(
                f"there are no models in {repository}: `autolabel serve --to {repository}` writes "
                "them"
            )
        return found
    backend, precision = options["backend"], options["precision"]
    if with_graphs:  # another machine's server cannot be asked what it has
        backend = "onnxruntime-cpu" if backend == "auto" else backend
        precision = precision_for(backend, precision)
    for model in () if with_graphs else models:  # refuse here what `autolabel label` would refuse
        choose_model(model, backend, precision)
    settings = ModelSettings(
        backend=backend, precision=precision, threads=options["threads"],
        image_bytes=options["cache_mb"] << 20,
    )  # fmt: skip
    placed = RepositoryOptions(settings, options["gpus"])
    return write_repository(repository, models, placed, with_graphs=with_graphs)


def _serve_page(picture: Path, grpc_url: str, names: list[str], stack: contextlib.ExitStack) -> str:
    """Serve the page of a picture on 127.0.0.1 until the stack ends; return its link."""
    detector = load_detector("compact")
    found = detector.detect([detector.letterbox(open_image(picture))], (), _LEAST_SCORE)[0]
    model = names[0].removeprefix("sam2_")
    client = stack.enter_context(Sam2Client(grpc_url, model))
    listener, token = bind(0), secrets.token_urlsafe(32)
    stack.enter_context(answering(Door(demo_page(client, picture, found.xyxy_px), token), listener))
    return f"http://127.0.0.1:{listener.getsockname()[1]}/?{TOKEN}={token}"
