"""Where frames may be read: below what was labeled here or named, and nowhere else."""

import pytest

from flows.run import label
from tasks.frames.sources import UnknownSourceError, refuse_unknown, remember_sources
from tasks.pipeline.params import LabelParams
from tasks.types import FrameRef
from tests.integration.runs import write_image
from tests.sam2_core.test_stamps import MICRO

pytestmark = pytest.mark.usefixtures("own_cache")


def is_known(uri):
    try:
        refuse_unknown([FrameRef("drive", "", 0, None, uri)])
    except UnknownSourceError:
        return False
    return True


@pytest.mark.parametrize(
    ("uri", "known"),
    [
        ("/data/drives/a/1.jpg", True),
        ("file:///data/drives/a/1.jpg", True),
        ("/data/drives/a.mp4#frame=3", True),
        ("/data/drives/a.mcap#/cam::front#frame=3", True),
        ("/data/drives/a::b/1.jpg", True),
        ("/data/drives-2/1.jpg", False),
        ("/data/drives/../secret/1.jpg", False),
        ("/data/secret#frame=1", False),
        ("~/1.jpg", False),
        ("drives/1.jpg", False),
        ("s3://bucket/in/a/1.jpg", True),
        ("s3a://bucket/in/a/1.jpg", True),
        ("s3://bucket/other/1.jpg", False),
        ("s3://bucket/in::http://169.254.169.254/x", False),
        ("s3://bucket/in/a::file:///etc/passwd", False),
        ("https://host/in/1.jpg", True),
        ("https://host/in/%2e%2e/admin", False),
        ("http://host/in/1.jpg", False),
        ("simplecache::https://host/in/1.jpg", False),
    ],
)
def test_what_lies_below_a_source_is_known(uri, known):
    remember_sources(["/data/drives/", "s3://bucket/in", "https://host/in/"])
    assert is_known(uri) == known


def test_a_pattern_means_the_folder_before_it():
    remember_sources(["/data/drives/*/CAM_FRONT"])
    assert is_known("/data/drives/a/CAM_FRONT/1.jpg")


def test_what_is_labeled_here_is_known(tmp_path):
    picture = write_image(tmp_path / "in" / "drive" / "1.jpg")
    boxes = tmp_path / "boxes" / "1.txt"
    boxes.parent.mkdir()
    boxes.write_text("car 0.9 10 10 40 40\n")
    assert not is_known(str(picture))
    label(
        LabelParams(
            sources=str(tmp_path / "in"), out=str(tmp_path / "out"), model=str(MICRO),
            boxes=str(boxes.parent), load_dataset=False,
        )
    )  # fmt: skip
    assert is_known(str(picture))
    assert not is_known(str(tmp_path / "1.jpg"))
