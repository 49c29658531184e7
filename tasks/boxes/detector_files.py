"""Detectors by name: official YOLOX releases, the bundled one, or any file.

`PATH#TEXT, TEXT` is an open-vocabulary detector with the texts that it looks for,
`PATH#=NAME, NAME` one with names for its classes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sam2_core.cache import cache_folder
from sam2_core.model_download import download, record, verify
from sam2_core.types import AutolabelError

CPU, CUDA, TENSORRT = ("CPUExecutionProvider",), "onnxruntime-cuda", "tensorrt"
# Inputs of graphs that take vectors of texts.
EMBEDDINGS = ("text_embeddings", "txt_feats")
RELEASES_URL = "https://github.com/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0"
BUNDLED_FOLDER = Path(__file__).resolve().parents[2] / "sam2_core" / "weights"
# What `train` makes; it lies in the package.
BUNDLED = {"compact": "detector_compact.onnx"}

# YOLOX 0.1.1rc0 (Apache-2.0), COCO classes: sha256 of each. The project publishes no hashes; these
# are what several projects that use the files recorded. "": the first download counts.
RELEASES = {
    "yolox_nano": "c789161ed43c8269fcd4e67c67eeeb4e80c622da2eb296a20bc6007bd18a0b7d",
    "yolox_tiny": "427cc366d34e27ff7a03e2899b5e3671425c262ea2291f88bb942bc1cc70b0f7",
    "yolox_s": "c5c2d13e59ae883e6af3b45daea64af4833a4951c92d116ec270d9ddbe998063",
    "yolox_m": "",
}

# Of COCO's classes, what is on roads and beside them: what the published YOLOX take by themselves.
ROAD_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "bus", "train", "truck", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "cat", "dog", "horse", "sheep", "cow",
)  # fmt: skip
ALL_CLASSES = ("all",)


class ReplacedError(AutolabelError):
    """A detector's file is not what its stamp says: it was replaced during the run."""


@dataclass(frozen=True)
class DetectorFile:
    """A detector on this machine.

    Attributes:
        name, path, sha256: of its file.
        prompts: texts that it looks for; () where its classes are its own.
        texts: digest of the prompts, or the names, and of the files beside it.
        names: of its classes, where they are not those of its metadata.

    """

    name: str
    path: Path
    sha256: str
    prompts: tuple[str, ...] = ()
    texts: str = ""
    names: tuple[str, ...] = ()

    @property
    def stamp(self) -> str:
        """Name and content: on every box, and part of every key."""
        return f"{self.name}@{self.sha256[:16]}{f'+{self.texts}' if self.texts else ''}"

    def read(self) -> bytes:
        """Read the file's bytes, once they are known to be those that the stamp names.

        Raises:
            AutolabelError: it cannot be read.
            ReplacedError: it, or a file that its prompts go through, is another one by now.

        """
        try:
            data = self.path.read_bytes()
        except OSError as error:
            reason = f"cannot read the detector {self.path}: {error.strerror}"
            raise AutolabelError(reason) from error
        known = hashlib.sha256(data).hexdigest() == self.sha256
        if not known or (self.prompts and prompt_digest(self.path, self.prompts) != self.texts):
            raise ReplacedError(replaced(self.path))
        return data


def replaced(path: Path, which: str = "") -> str:
    """Say that a detector's file is another one by now."""
    return (
        f"the detector {path} is not the one that this run began with{which}: it was replaced "
        "meanwhile. Run again, and the labels get their own key"
    )


def prompts_in(text: str) -> tuple[str, ...]:
    """Texts between commas, each once.

    Raises:
        AutolabelError: there is none.

    """
    found = tuple(dict.fromkeys(" ".join(part.split()) for part in text.split(",") if part.strip()))
    if not found:
        raise AutolabelError("the prompt is empty: name what to look for, such as 'car, person'")
    return found


def classes_in(text: str) -> tuple[str, ...]:
    """Names between commas, one for each number that a detector gives, repeated ones too.

    Raises:
        AutolabelError: one is empty, and those behind it may be numbered from another one.

    """
    found = tuple(" ".join(part.split()) for part in text.split(","))
    if not all(found):
        raise AutolabelError(
            f"--detector-classes {text!r} has an empty name: name every class, in the order of "
            "the detector's numbers"
        )
    return found


def files_beside(model: Path) -> list[Path]:
    """Files beside a graph that decide what it does with texts and pictures."""
    folders = [model.parent, *([model.parent.parent] if model.parent.name == "onnx" else [])]
    found = [model.with_suffix(".embeddings.npz")]
    for name in ("tokenizer.json", "preprocessor_config.json"):
        found += [folder / name for folder in folders if (folder / name).is_file()][:1]
    return [path for path in found if path.is_file()]


def prompt_digest(model: Path, prompts: Sequence[str]) -> str:
    """Digest of the texts and of every file that they go through; for the stamp of the labels."""
    digest = hashlib.sha256("\0".join(prompts).encode())
    for path in files_beside(model):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def takes_text(inputs: Mapping[str, Any]) -> bool:
    """Whether a graph's inputs, by name, are those of an open-vocabulary detector."""
    return "input_ids" in inputs or any(name in inputs for name in EMBEDDINGS)


def with_prompt(name_or_path: str, prompt: str | None, names: str | None = None) -> str:
    """Name a detector together with the texts that it looks for, or the names of its classes."""
    if prompt:
        return f"{name_or_path}#{', '.join(prompts_in(prompt))}"
    return f"{name_or_path}#={', '.join(classes_in(names))}" if names else name_or_path


def resolve_detector(name_or_path: str) -> DetectorFile:
    """Find a detector by name or path, downloading a release that is not in the cache.

    Args:
        name_or_path: `compact`, a release (`yolox_nano`, also `yolox-nano`), or a path to .onnx;
            after a "#" what to look for, as `with_prompt` makes it.

    Raises:
        AutolabelError: unknown name, missing file, failed download or another sha256.

    """
    name_or_path, _, prompt = name_or_path.partition(".onnx#")
    name_or_path += ".onnx" if prompt else ""
    name = name_or_path.lower().replace("-", "_")
    if name in RELEASES:
        path = cache_folder() / "detectors" / f"{name}.onnx"
        download(f"{RELEASES_URL}/{path.name}", path, sha256=RELEASES[name])
        digest = verify(path, RELEASES[name])
        record(path, digest)  # of some releases no hash is known before they have been fetched
        return DetectorFile(name, path, digest)
    bundled = BUNDLED_FOLDER / BUNDLED[name] if name in BUNDLED else None
    path = bundled or Path(name_or_path).expanduser()
    if not path.is_file():
        known = ", ".join([*BUNDLED, *RELEASES])
        raise AutolabelError(
            f"no detector {name_or_path!r}: {path} is not a file, and the known names are {known}; "
            "for boxes from a file use --boxes"
        )
    digest = verify(path)
    name = name if bundled else re.sub(r"\W+", "_", path.stem)
    names = classes_in(prompt[1:]) if prompt.startswith("=") else ()
    prompts = prompts_in(prompt) if prompt and not names else ()
    texts = prompt_digest(path, names or prompts) if prompt else ""
    return DetectorFile(name, path, digest, prompts, texts, names)
