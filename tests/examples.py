"""Pictures and what is truly in them: frames that come with the package."""

from sam2_core.types import ImageArray
from tasks.dataset.coco_truth import TruthImage
from tasks.evaluate.evaluate import EXAMPLES, example_truths
from tasks.frames.images import decode_image

DRIVE = EXAMPLES / "street-a" / "images"


def example(index: int = 0) -> tuple[ImageArray, TruthImage]:
    """One frame of a rendered drive: 720x1280 pixels and its truth."""
    (truth,) = (truth for images, truth in example_truths() if images == DRIVE)
    image = truth.images[index]
    return decode_image((DRIVE / image.file_name).read_bytes()), image
