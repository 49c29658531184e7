"""Write the frames and truth that the product carries: `python -m lab.examples DGP_SCENE`.

DGP_SCENE is a copy of `tests/data/dgp/test_scene/scene_01/rgb` of https://github.com/TRI-ML/dgp,
with that repository's LICENSE (MIT) in or above it. The first two moments of its three cameras are
taken, half as wide and high. The rendered drives are of seeds that no bundled model was trained on.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image

from lab.scenes import write_sequence
from sam2_core.types import ImageArray
from tasks.evaluate.evaluate import EXAMPLES

# Name, seed, moments, cameras.
RENDERED = (
    ("street-a", 900_005, 12, ("front",)),
    ("street-b", 900_006, 12, ("front",)),
    ("crossing-3-cameras", 900_009, 4, ("front", "front_left", "front_right")),
)
REAL, MOMENTS = "real-3-cameras", 2


def main(scene: Path) -> None:
    """Write all examples anew: 4 MB."""
    shutil.rmtree(EXAMPLES, ignore_errors=True)
    for name, seed, moments, cameras in RENDERED:
        write_sequence(EXAMPLES / name, seed, moments, cameras=cameras, encode=_small)
    for camera in sorted(one for one in scene.iterdir() if one.is_dir()):
        target = EXAMPLES / REAL / "images" / camera.name
        target.mkdir(parents=True)
        for path in sorted(camera.glob("*.jpg"))[:MOMENTS]:
            with Image.open(path) as picture:
                picture.reduce(2).save(target / path.name, quality=70, optimize=True)
    licences = (folder / "LICENSE" for folder in (scene, *scene.parents))
    shutil.copyfile(next(one for one in licences if one.is_file()), EXAMPLES / REAL / "LICENSE")


def _small(image: ImageArray) -> bytes:
    """Return a JPEG that costs the demo's figures less than 0.01."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=80, optimize=True, progressive=True)
    return buffer.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
