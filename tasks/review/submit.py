"""Handing a relabel request to Prefect, when a server with the deployment is there."""

from __future__ import annotations

import os
from typing import Any

from tasks.review.events import storage_of
from tasks.review.relabel_requests import RelabelRequest

DEPLOYMENT = "relabel/relabel"


def submit_relabel(dataset: Any, request: RelabelRequest) -> str:
    """Start the deployment `relabel` for a request; say where it is now.

    Without a server the request waits in storage for `autolabel review relabel`.
    """
    if not os.environ.get("PREFECT_API_URL"):
        return f"it waits for `autolabel review relabel {request.dataset}`"
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound

    parameters = {
        "dataset": request.dataset, "out": storage_of(dataset), "request_id": request.request_id,
    }  # fmt: skip
    try:
        run: Any = run_deployment(
            DEPLOYMENT, parameters=parameters, timeout=0, as_subflow=False,
            idempotency_key=f"relabel-{request.request_id}",
        )  # fmt: skip
    except ObjectNotFound:
        return f"no deployment {DEPLOYMENT} on the server: it waits in storage"
    except OSError as error:
        return f"the Prefect server does not answer ({error}): it waits in storage"
    return f"flow run {run.name}"
