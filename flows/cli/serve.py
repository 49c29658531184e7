"""`autolabel serve`: models on a Triton server of this machine, without containers."""

from __future__ import annotations

import json
import os
import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli.common_options import FILE, load_timeout_option
from flows.cli.models_build import numbers
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.serving.server_process import RunningServer, ServerOptions
    from sam2_core.serving.supervised import SupervisedServer

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def _port(name: str, default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = click.IntRange(0, 65535)
    return click.option(name, type=kind, default=default, help="0: any free one.")


@click.command(short_help="Serve models on a Triton server.")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--backend", default="auto", help="What runs the models.")
@click.option("--precision", default="auto", help="auto, fp32 or fp16.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: every core.")
@click.option("--gpus", callback=numbers, metavar="0,1", help="CUDA devices; one instance on each.")
@click.option(
    "--cache-mb",
    type=click.IntRange(16),
    default=1024,
    help="Memory for embeddings; the least recently used go first.",
)
@load_timeout_option
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@_port("--http-port", 8000)
@_port("--grpc-port", 8001)
@_port("--metrics-port", 8002)
@click.option(
    "--tls-certificate", type=_FILE, help="Certificate of this server; gRPC then speaks TLS."
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
def command(models: tuple[str, ...], **given: Any) -> None:  # fmt: skip
    """Serve SAM 2 to labeling on other machines and to interactive tools.

    A MODEL is one that `autolabel label --model` takes; with `:whole` behind it a model of
    close-ups takes whole frames. By default: compact, compact:whole.
    """
    from flows.cli.display import stderr_console
    from sam2_core.images import open_image
    from sam2_core.serving.installed_server import find_server
    from sam2_core.serving.server_memory import (
        new_prefix,
        own_folder,
        remove_left_over,
        remove_shared_memory,
    )
    from sam2_core.serving.server_process import start_server
    from sam2_core.serving.supervised import SupervisedServer

    _refuse_wrong_options(models, given)
    console, prefix = stderr_console(), new_prefix()
    remove_left_over()
    installed = find_server()
    if given["picture"]:
        open_image(given["picture"])  # errors come before the server starts
    with own_folder() as folder:
        repository = given["repository"] or Path(folder) / "repository"
        names = _written(repository, models or ("compact", "compact:whole"), prefix, given)
        log = (given["log"] or Path(folder) / "server.log").absolute()
        options = _options(given).with_free_ports()

        def start() -> RunningServer:
            return start_server(installed, repository, names, options, prefix=prefix, log=log)

        supervised = SupervisedServer(start, given["load_timeout"], console.print)
        try:
            _on_signals(supervised)
            with console.status("starting the server"):
                supervised.wait_ready()
            if not supervised.told_to_end:
                server = supervised.server
                page = _show(given["picture"], server, names) if given["picture"] else ""
                _tell(console, server, names, page, as_json=given["as_json"])
            supervised.wait()
        finally:
            supervised.server.stop(now=True)
            remove_shared_memory(prefix)


def _refuse_wrong_options(models: tuple[str, ...], given: dict[str, Any]) -> None:
    """Refuse what the server would refuse later, and in words of its own."""
    certificate, key = given["tls_certificate"], given["tls_key"]
    if bool(certificate) != bool(key):
        raise click.UsageError("--tls-certificate and --tls-key go together")
    if given["tls_clients"] and not certificate:
        raise click.UsageError("--tls-clients needs --tls-certificate and --tls-key")
    if models and given["repository"]:
        raise click.UsageError("--repository serves the models in it: name none")
    if given["log"] and not given["log"].absolute().parent.is_dir():
        raise click.UsageError(f"--log: there is no folder {given['log'].absolute().parent}")
    try:
        if certificate:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        if given["tls_clients"]:
            ssl.create_default_context(cafile=given["tls_clients"])
    except ssl.SSLError as error:
        raise click.UsageError(
            f"the TLS files are not PEM files, or the key belongs to another certificate: {error}"
        ) from error


def _written(
    repository: Path, models: tuple[str, ...], prefix: str, given: dict[str, Any]
) -> list[str]:
    """Return what to load; write a repository unless one is given."""
    from sam2_core.serving.contract import WHOLE_FRAMES
    from sam2_core.serving.python_model import STORE_VARIABLE
    from sam2_core.serving.repository import RepositoryOptions, write_repository
    from sam2_core.serving.server_memory import SHARED_MEMORY
    from tasks.masks.model import choose_model

    if given["repository"]:
        os.environ[STORE_VARIABLE] = str(SHARED_MEMORY / f"{prefix}-store")
        found = sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
        if not found:
            raise AutolabelError(
                f"there are no models in {repository}: `autolabel models triton-repository --out "
                f"{repository}` writes them"
            )
        return found
    for model in models:  # refuse before Triton starts what `autolabel label` would refuse
        choose_model(model.removesuffix(WHOLE_FRAMES), given["backend"], given["precision"])
    options = RepositoryOptions(
        given["backend"], given["precision"], given["threads"],
        str(SHARED_MEMORY / f"{prefix}-store"), given["cache_mb"] << 20,
        gpus=given["gpus"],
        loading_s=given["load_timeout"],
    )  # fmt: skip
    return write_repository(repository, models, options, where_is=_absolute)


def _absolute(model: str) -> str:
    """Return a model's name as it is the same in any folder."""
    from sam2_core.serving.contract import WHOLE_FRAMES

    name = model.removesuffix(WHOLE_FRAMES)
    path = Path(name).expanduser()
    return str(path.absolute()) + model[len(name) :] if path.exists() else model


def _options(given: dict[str, Any]) -> ServerOptions:
    from sam2_core.serving.server_process import ServerOptions

    names = (
        "host", "http_port", "grpc_port", "metrics_port", "tls_certificate", "tls_key",
        "tls_clients",
    )  # fmt: skip
    return ServerOptions(**{name: given[name] for name in names})


def _on_signals(supervised: SupervisedServer) -> None:
    """Stop the server on Ctrl-C and SIGTERM; the waiting thread then continues."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: supervised.end())


def _show(picture: Path, server: RunningServer, names: list[str]) -> str:
    """Serve the page of a picture for as long as this process runs; return its address."""
    from sam2_core.serving.client import Sam2Client
    from sam2_core.serving.demo_page import demo_server

    images = (one.removeprefix("sam2_") for one in names)
    model = next(one for one in images if not one.startswith(("encoder_", "decoder_")))
    page = demo_server(Sam2Client(server.http_url, model), picture)
    threading.Thread(target=page.serve_forever, name="page", daemon=True).start()
    return page.url


def _tell(
    console: Any, server: RunningServer, names: list[str], page: str, *, as_json: bool
) -> None:
    where = {"page": page} if page else {}
    where |= {"grpc": server.grpc_url, "http": server.http_url, "metrics": server.metrics_url}
    for name, url in where.items():
        console.print(f"[dim]{name:<8}[/] {url}", soft_wrap=True)
    console.print(f"[dim]{'models':<8}[/] {', '.join(names)}", soft_wrap=True)
    console.print(
        "Ctrl-C ends it. Label with it: [bold]autolabel label ... --backend triton --triton-urls "
        f"{server.grpc_url}",
        soft_wrap=True,
    )
    if as_json:
        click.echo(json.dumps(where | {"models": names, "pid": server.process.pid}))
