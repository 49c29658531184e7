"""A served model as a backend of labeling: which one, and the connection to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sam2_core.backends.triton_backend import TritonBackend
from sam2_core.decisive_code import mask_code
from sam2_core.serving.contract import DEFAULT_URL, URLS_VARIABLE, ServedModel, served_as
from sam2_core.serving.failover import Servers
from sam2_core.serving.transport import ServerError, connect
from sam2_core.types import AutolabelError

BACKEND = "triton"


def server_urls(given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the servers to use: as given, the environment's, or one on this machine."""
    named = os.environ.get(URLS_VARIABLE, "")
    return tuple(given) or tuple(filter(None, named.split(","))) or (DEFAULT_URL,)


def find_served(
    models: Sequence[str | Path], precision: str = "auto", urls: Sequence[str] = ()
) -> tuple[str, ServedModel]:
    """Return the first of several models that is served, and what it is.

    Args:
        models: as they were given to `autolabel serve`.
        precision: that it must have, or "auto".
        urls: servers, in the order in which they are tried.

    Raises:
        AutolabelError: no server answers, none of the models is served, or one of another version
            of this package.

    """
    problem: ServerError | None = None
    for model in models:
        try:
            servers = _servers(model, urls)
        except ServerError as error:
            problem = problem or error
            continue
        servers.close()
        _refuse_other(servers.served, precision)
        return str(model), servers.served
    raise AutolabelError(
        f"{' and '.join(server_urls(urls))} does not serve {' or '.join(map(str, models))}: "
        f"`autolabel serve {models[-1]}` there does ({problem})"
    ) from problem


def load_triton(
    model: str | Path, precision: str = "auto", urls: Sequence[str] = ()
) -> TritonBackend:
    """Return a served model as a backend.

    Raises:
        AutolabelError: as `find_served`.

    """
    servers = _servers(model, urls)
    _refuse_other(servers.served, precision)
    return TritonBackend(servers)


def _servers(model: str | Path, urls: Sequence[str]) -> Servers:
    return Servers([connect(url) for url in server_urls(urls)], served_as(model))


def _refuse_other(served: ServedModel, precision: str) -> None:
    """Refuse a server whose masks are not those that this side takes them for."""
    stamp = served.stamp
    if precision not in {"auto", stamp.precision}:
        raise AutolabelError(
            f"the server runs {stamp.name} in {stamp.precision}, not in {precision}: leave "
            "--precision out, or `autolabel serve` with it"
        )
    if stamp.code_version != mask_code(stamp.backend):
        raise AutolabelError(
            f"the server runs another version of sam2-autolabel ({stamp.code_version}, here "
            f"{mask_code(stamp.backend)}): install the same one on both sides"
        )
