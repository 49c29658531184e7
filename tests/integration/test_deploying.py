"""Deploying again: what a person has set stays, what belongs to the version is updated."""

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.server.deployments import FILE_VARIABLE, deploy, described
from sam2_core.types import AutolabelError

PARAMETERS = {"params": {"label": {"sources": ["/drives"], "out": "/labels"}}}


@pytest.fixture
def nightly(prefect_api, monkeypatch, tmp_path):
    """Deploys the nightly deployment alone, as `change` leaves what the file says of it."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    (values,) = [one for one in described() if one["name"] == "nightly"]
    file = tmp_path / "prefect.yaml"
    monkeypatch.setenv(FILE_VARIABLE, str(file))

    def again(**change):
        file.write_text(yaml.safe_dump({"pull": [], "deployments": [values | change]}))
        deploy()
        return client.read_deployment_by_name("nightly/nightly")

    with (
        temporary_settings({PREFECT_API_URL: prefect_api}),
        get_client(sync_client=True) as client,
    ):
        yield again, client


def test_what_a_person_set_stays(nightly):
    again, client = nightly
    first = again()
    assert first.parameters == {}
    assert [one.active for one in first.schedules] == [False]

    (schedule,) = first.schedules
    own = {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "7", "MINE": "1"}, "stream_output": False}
    client.update_deployment_schedule(
        first.id, schedule.id, active=True, schedule=CronSchedule(cron="5 4 * * *")
    )
    client.create_deployment_schedules(first.id, [(IntervalSchedule(interval=3600), False)])
    set_by_hand = DeploymentUpdate(
        parameters=PARAMETERS, paused=True, tags=["mine", "autolabel"], job_variables=own,
        concurrency_limit=3,
    )  # fmt: skip
    client.update_deployment(first.id, set_by_hand)
    before = client.read_deployment_by_name("nightly/nightly")

    environment = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "NEW": "2"}
    pool = {"name": "cpu", "job_variables": {"env": environment}}
    after = again(description="As it is now.", tags=["autolabel", "new"], work_pool=pool)
    assert after.description == "As it is now."
    assert set(after.tags) == {"mine", "autolabel", "new"}
    assert after.job_variables == own | {"env": own["env"] | {"NEW": "2"}}
    told = {"parameters", "paused", "schedules", "global_concurrency_limit", "work_queue_name"}
    assert after.model_dump(include=told) == before.model_dump(include=told)
    assert len(after.schedules) == 2
    assert after.parameters == PARAMETERS

    at = client.read_deployment_by_name("nightly/nightly").updated
    again(description="As it is now.", tags=["autolabel", "new"], work_pool=pool)
    assert client.read_deployment_by_name("nightly/nightly").updated == at  # nothing was written

    # Parameters that an older version took.
    old = {"type": "object", "properties": {"wait_hours": {"type": "string"}}}
    update = DeploymentUpdate(parameters={"wait_hours": "soon"}, parameter_openapi_schema=old)
    client.update_deployment(first.id, update)
    with pytest.raises(AutolabelError, match=r"nightly/nightly was given do not fit.*soon"):
        again()
