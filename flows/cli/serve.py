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

from flows.cli.common_options import FILE, cache_mb_option, load_timeout_option, numbers, refuse
from flows.cli.display import say, stderr_console
from sam2_core.images import open_image
from sam2_core.serving.client import Sam2Client
from sam2_core.serving.contract import WHOLE_FRAMES
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
_PORT, _ANY = click.IntRange(0, 65535), "0: any free one."


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--backend", default="auto", help="What runs the models.")
@click.option("--precision", default="auto", help="auto, fp32 or fp16.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: every core.")
@click.option(
    "--gpus", callback=numbers, metavar="0,1", help="CUDA devices, each with two processes."
)
@cache_mb_option
@load_timeout_option
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--http-port", type=_PORT, default=8000, help=_ANY)
@click.option("--grpc-port", type=_PORT, default=8001, help=_ANY)
@click.option("--metrics-port", type=_PORT, default=8002, help=_ANY)
@click.option(
    "--tls-certificate", type=_FILE, help="Certificate of this server; all ports then speak TLS."
)
@click.option("--tls-key", type=_FILE, help="Key of that certificate.")
@click.option("--tls-clients", type=_FILE, help="CA of the clients that may connect.")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Serve all models of an existing repository.",
)
@click.option(
    "--log",
    type=FILE,
    help="File for the server's log. Default: if the server ends, its last errors are shown.",
)
@click.option(
    "--demo",
    "picture",
    type=_FILE,
    help="Also serve a page on this machine to click on this picture.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout when ready.")
def command(models: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Serve SAM 2 to labeling on other machines and to interactive tools.

    A MODEL is one that `autolabel label --model` takes; with `:whole` behind it a model of
    close-ups takes whole frames. By default: compact, compact:whole.
    """
    _refuse_wrong_options(models, options)
    console, prefix = stderr_console(), new_prefix()
    remove_left_over()
    installed = find_server()
    if options["picture"]:
        open_image(options["picture"])  # errors come before the server starts
    host = options["host"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(own_folder()))
        repository = options["repository"] or folder / "repository"
        names = _written(repository, models or ("compact", "compact:whole"), options)
        log = (options["log"] or folder / "server.log").absolute()
        http, metrics, grpc = (
            stack.enter_context(listen(host, options[name], f"--{name.replace('_', '-')}"))
            for name in ("http_port", "metrics_port", "grpc_port")
        )
        server_options = ServerOptions(
            host, grpc.getsockname()[1], *(options[f"tls_{one}"] for one in _TLS_FILES)
        )
        grpc.close()  # Triton listens there
        stack.callback(remove_shared_memory, prefix)
        server = TritonServer(
            installed, repository, names, server_options, prefix=prefix, log=log,
            loading_s=options["load_timeout"], tell=console.print,
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
            if options["picture"]:
                where["page"] = _serve_page(options["picture"], grpc_url, names, stack)
            where |= {
                "grpc": grpc_url,
                "http": f"http{tls}://{at}:{http.getsockname()[1]}",
                "metrics": f"http{tls}://{at}:{metrics.getsockname()[1]}/metrics",
            }
            for name, address in (where | {"models": ", ".join(names)}).items():
                say(f"{name:<8} {address}", err=True)  # with the token of the page's link
            console.print(
                "Ctrl-C ends it. Label with it: [bold]autolabel label ... --backend triton "
                f"--triton-urls {where['grpc']}"
            )
            if options["as_json"]:  # on one line, for whoever waits for it
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
    folder = (options["log"] or Path("log")).absolute().parent
    refuse(
        {
            "--tls-certificate and --tls-key go together": bool(certificate) != bool(key),
            "--tls-clients needs --tls-certificate and --tls-key": (
                options["tls_clients"] and not certificate
            ),
            "--demo is for a look on this machine: leave the TLS options out": (
                options["picture"] and certificate
            ),
            "--repository serves the models in it: name none": models and options["repository"],
            f"--log: there is no folder {folder}": not folder.is_dir(),
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


def _written(repository: Path, models: tuple[str, ...], options: dict[str, Any]) -> list[str]:
    """Return what to load; write a repository unless one is given."""
    if options["repository"]:
        found = models_in(repository)
        if not found:
            raise AutolabelError(
                f"there are no models in {repository}: `autolabel models triton-repository --out "
                f"{repository}` writes them"
            )
        return found
    for model in models:  # refuse before Triton starts what `autolabel label` would refuse
        choose_model(model.removesuffix(WHOLE_FRAMES), options["backend"], options["precision"])
    settings = ModelSettings(
        backend=options["backend"], precision=options["precision"], threads=options["threads"],
        image_bytes=options["cache_mb"] << 20, loading_s=options["load_timeout"],
    )  # fmt: skip
    placed = RepositoryOptions(settings, options["gpus"])
    return write_repository(repository, models, placed)


def _serve_page(picture: Path, grpc_url: str, names: list[str], stack: contextlib.ExitStack) -> str:
    """Serve the page of a picture on 127.0.0.1 until the stack ends; return its link."""
    detector = load_detector("compact")
    found = detector.detect([detector.letterbox(open_image(picture))], (), _LEAST_SCORE)[0]
    model = names[0].removeprefix("sam2_")
    client = stack.enter_context(Sam2Client(grpc_url, model))
    listener, token = bind(0), secrets.token_urlsafe(32)
    stack.enter_context(answering(Door(demo_page(client, picture, found.xyxy_px), token), listener))
    return f"http://127.0.0.1:{listener.getsockname()[1]}/?{TOKEN}={token}"
