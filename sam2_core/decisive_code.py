"""Which modules decide masks, besides the weights, and the digest of their source.

The digest is part of every stamp, so that other code is another key. Comments, docstrings, imports
and blank lines do not count; every other character does. Equal sources give equal digests on any
machine, in any folder and under any supported Python. Tests hold the lists against what labeling
really imports.
"""

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
    paths = [ROOT.joinpath(*module.split(".")).with_suffix(".py") for module in modules]
    try:
        texts = sorted(decisive_source(path.read_text(encoding="utf-8")) for path in paths)
    except OSError as error:
        raise AutolabelError(
            f"cannot read {error.filename}, which decides labels and is part of their key: install "
            "the package with its sources"
        ) from error
    for text in texts:
        total.update(hashlib.sha256(text.encode()).digest())
    return total.hexdigest()[:12]


def decisive_source(text: str) -> str:
    """Return source without comments, docstrings, imports and blank lines.

    Read as tokens: two threads that make syntax trees at once may fail under Python 3.11.
    """
    lines, statement = text.split("\n"), list[tokenize.TokenInfo]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        if token.type == tokenize.COMMENT:
            lines[row - 1] = lines[row - 1][:column]
        elif token.type == tokenize.NEWLINE:
            is_text = all(one.type == tokenize.STRING for one in statement)
            if is_text or statement[0].string in {"import", "from"}:
                rows = slice(statement[0].start[0] - 1, row)
                lines[rows] = [""] * len(lines[rows])
            statement = []
        elif token.type not in {tokenize.NL, tokenize.INDENT, tokenize.DEDENT}:
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
    "follow", "backends.follow_backends", "backends.torch_follow", "architecture.memory",
    "architecture.memory_fused", "architecture.memory_graphs", "architecture.memory_kernels",
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
