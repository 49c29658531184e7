"""Which modules decide masks, besides the weights, and the digest of their source.

The digest is part of every stamp, so that other code is another key. Comments, docstrings, imports
and blank lines do not count; every other character does. Equal sources give equal digests on any
machine, in any folder and under any supported Python. Tests hold the lists against what labeling
really imports.
"""

from __future__ import annotations

import functools
import hashlib
import io
import tokenize
from pathlib import Path

from sam2_core.types import AutolabelError

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def source_digest(modules: tuple[str, ...]) -> str:
    """Return 12 hexadecimal digits for the modules of these dotted names, in any order.

    Raises:
        AutolabelError: a module's source is not there, as in an installation of bytecode alone.

    """
    total = hashlib.sha256()
    for text in sorted(decisive_source(_source(module)) for module in modules):
        total.update(hashlib.sha256(text.encode()).digest())
    return total.hexdigest()[:12]


def _source(module: str) -> str:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise AutolabelError(
            f"cannot read {path}, which decides labels and is part of their key: install the "
            "package with its sources"
        ) from error


def decisive_source(text: str) -> str:
    """Return source without comments, docstrings, imports and blank lines."""
    lines = text.split("\n")
    statement: list[tokenize.TokenInfo] = []
    first_of_block = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
        elif token.type == tokenize.INDENT:
            first_of_block = True
        elif token.type == tokenize.NEWLINE:
            is_text = {one.type for one in statement} == {tokenize.STRING}
            if statement[0].string in {"import", "from"} or (first_of_block and is_text):
                for row in range(statement[0].start[0] - 1, statement[-1].end[0]):
                    lines[row] = ""
            statement, first_of_block = [], False
        elif token.type not in {tokenize.NL, tokenize.DEDENT}:
            statement.append(token)
    return "\n".join(line.rstrip() for line in lines if line.strip())


_EVERYWHERE = (
    "batching", "postprocess", "preprocess", "prompts", "segmenter",
)  # fmt: skip
_ONNXRUNTIME = ("backends.onnxruntime_backend",)
_BACKENDS = {
    "onnxruntime-cpu": _ONNXRUNTIME,
    "onnxruntime-cuda": (
        *_ONNXRUNTIME, "backends.cuda_backend", "backends.gpu", "backends.onnxruntime_cuda",
        "backends.pixel_kernels",
    ),
    "tensorrt": (
        "backends.cuda_backend", "backends.tensorrt_backend", "backends.tensorrt_engines",
        "backends.gpu", "backends.pixel_kernels",
    ),
    "torch": (
        "backends.torch_backend", "backends.torch_compiled",
        "architecture.hiera", "architecture.lean_attention",
        "architecture.lean_decoder", "architecture.lean_encoder", "architecture.mask_decoder",
        "architecture.model", "architecture.prompt_encoder", "architecture.published",
        "checkpoints",
    ),
}  # fmt: skip


# What follows objects, beside what makes masks.
_FOLLOWING = (
    "follow", "backends.follow_backends", "architecture.memory", "architecture.memory_graphs",
)  # fmt: skip


def following_modules() -> tuple[str, ...]:
    """Return the dotted names of what decides where objects are followed to."""
    return tuple(f"sam2_core.{name}" for name in _FOLLOWING)


def decisive_modules(backend: str) -> tuple[str, ...]:
    """Return the dotted names of what decides the masks of a backend.

    Args:
        backend: as stamps name it; what follows its name, such as a version, does not matter.

    """
    own = next((names for name, names in _BACKENDS.items() if backend.startswith(name)), ())
    return tuple(f"sam2_core.{name}" for name in (*_EVERYWHERE, *own))


def mask_code(backend: str) -> str:
    """Return the digest of the code that decides a backend's masks: a stamp's `code_version`."""
    return source_digest(decisive_modules(backend))
