"""Flow `relabel`: labels that reviewers sent back are made again and return to the dataset."""

from __future__ import annotations

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from tasks.errors import redacted_errors
from tasks.review.relabel import relabel_dataset


@flow(name="relabel", log_prints=False)
def relabel(dataset: str, out: str = "", request_id: str = "", backend: str = "auto") -> int:
    """Work off the relabel requests of a dataset; return how many labels were made again.

    Args:
        dataset: name of the FiftyOne dataset.
        out: the run's storage; by default the one that the dataset's labels came from.
        request_id: only this request; by default every open one.
        backend: what runs the model.

    """
    with redacted_errors():
        return _relabel(dataset, out, request_id, backend)


def _relabel(dataset: str, out: str, request_id: str, backend: str) -> int:
    report = relabel_dataset(dataset, out, request_id, backend)
    create_markdown_artifact(
        key="relabel",
        markdown=f"{report.labels} labels of {report.requests} requests made again in `{dataset}`",
    )
    return report.labels
