"""What is advised can be pasted, and labels with the parameters that the run had."""

import shlex

import click
import pytest

from flows.cli.backfill import command
from flows.cli.options import backfill_params
from flows.params import LabelParams
from flows.server.status import backfill_again

LABELS = [
    {},
    {"load_dataset": False, "tracks": False, "frames": "::2", "chunk_frames": 8},
    {"dataset": "mine", "classes": ("car", "a b"), "min_score": 0.5, "fill_gaps": 2},
    {"backend": "onnxruntime-cpu", "precision": "fp32", "allow_uncertified": True, "tiles": 2},
    {"boxes": "/boxes of mine", "model": "/models/x", "overlap": "score", "clean_masks": 0.01},
    {"sources": ("/drives/2026-*", "/it's here"), "detector": "yolox_s"},
    {"backend": "triton", "triton_urls": ("grpc://one:1", "grpc://two:2")},
]


@pytest.mark.parametrize("given", LABELS)
def test_the_command_has_the_parameters_of_the_run(given):
    label = LabelParams(**{"sources": ("s3://drives",), "out": "s3://labels"} | given)
    told = backfill_again(label, "--retry-quarantined", sequences=["a drive"])
    words = shlex.split(told.strip("`"))
    assert words[:2] == ["autolabel", "backfill"]
    context = command.make_context("backfill", words[2:])
    values = {name: value for name, value in context.params.items()
              if name not in ("dry_run", "wait", "cancel", "as_json")}  # fmt: skip
    with context:
        params = backfill_params(values)
    assert params.label == label
    assert (params.sequences, params.retry_quarantined) == ("a drive", True)
    assert isinstance(command, click.Command)


def test_what_the_command_lacks_is_told():
    label = LabelParams(sources=[f"/list/{number}" for number in range(1200)], out="/labels")
    told = backfill_again(label, sequences=["a", "b"])
    assert told.startswith("`autolabel backfill --out /labels` (with its 1,200 sources and with ")
    assert "--since, --until or --sequences, if it had some" in told
