"""Prefect's automations: what its server does by itself when a worker dies; see the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.server.shard_runs import explained

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore


def ensure_automations(file: Path) -> list[str]:
    """Create the automations of a file, or bring them up to date; returns their names.

    Raises:
        AutolabelError: Prefect is not there.

    """
    import yaml
    from prefect.events.schemas.automations import AutomationCore

    wanted = [AutomationCore.model_validate(one) for one in yaml.safe_load(file.read_text())]
    explained(lambda: _ensure(wanted))
    return [one.name for one in wanted]


def _ensure(wanted: list[AutomationCore]) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for one in wanted:
            there = client.read_automations_by_name(one.name)
            if not there:
                client.create_automation(one)
                continue
            client.update_automation(there[0].id, one)
            for double in there[1:]:
                client.delete_automation(double.id)
