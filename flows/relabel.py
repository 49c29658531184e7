"""Flow `relabel`: labels that reviewers sent back are made again and return to the dataset."""

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.task_runners import ThreadPoolTaskRunner

from flows.prefect_tasks import submit_step
from flows.server.artifacts import dated
from flows.server.runs import signs_of_life
from tasks.errors import redacted_errors
from tasks.masks.model import Segmenters
from tasks.observe.progress import SEGMENT
from tasks.review.relabel import remake, waiting_requests
from tasks.wording import counted, plain


@flow(
    name="relabel",
    flow_run_name=dated("relabel"),
    description="Make labels again that reviewers sent back.",
    task_runner=ThreadPoolTaskRunner(max_workers=4),  # type: ignore[arg-type]
    persist_result=False,
)
def relabel(dataset: str, out: str = "", request_id: str = "", backend: str = "auto") -> int:
    """Work off the relabel requests of a dataset; return how many labels were made again.

    Args:
        dataset: name of the FiftyOne dataset.
        out: the run's storage; by default the one that the dataset's labels came from.
        request_id: only this request; by default every open one.
        backend: what runs the model.

    """
    with redacted_errors(), signs_of_life():
        segmenters = Segmenters()
        out, waiting = waiting_requests(dataset, out, request_id)
        submitted = [
            submit_step(SEGMENT, one.request_id, remake, one, out, segmenters, backend)
            for one in waiting
        ]
        remade = [one.result() for one in submitted]
        labels: int = sum(count for count, _ in remade)
        told = f"{counted(labels, 'label')} of {counted(len(waiting), 'request')} made again in "
        create_markdown_artifact(key="relabel", markdown=told + plain(dataset))
        for _, error in remade:
            if error:
                raise error
        return labels
