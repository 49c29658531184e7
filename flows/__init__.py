"""Composition: parameters, Prefect flows and the command line.

Every process of ours imports this first: what it logs from then on holds no secret, and Prefect,
which reads its settings when it is imported, is told ours. What the user has set stays.
"""

import logging
import os

from sam2_core.redaction import install

PREFECT_SETTINGS = {
    "DO_NOT_TRACK": "1",  # else importing Prefect sends what it counts
    # Else a flow that is called without a server starts one: with no deployments of ours, no
    # workers, and its runs where no page shows them.
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    # Else it warns of every line that a thread of no run logs.
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}

install()
# Where its server is busy, Prefect warns at the end that it still sends events.
logging.getLogger("EventsWorker").setLevel(logging.ERROR)
for name, value in PREFECT_SETTINGS.items():
    os.environ.setdefault(name, value)
