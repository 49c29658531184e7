"""Texts that an open-vocabulary detector looks for, as its graph takes them.

Three forms, told apart by the names of the graph's inputs:

- embeddings: `text_embeddings` (or `txt_feats`) float32 (1, C, D) or (C, D), a row for each text,
  from `MODEL.embeddings.npz` beside MODEL.onnx, where each text is the name of its vector.
- phrases (OWL-ViT): `input_ids` and `attention_mask` int64 (C, T), a row for each text.
- caption (Grounding DINO): the same of one row (1, T), beside `token_type_ids`: all texts in one
  sentence, "car. traffic cone."; which tokens are of which text says which class was found.

Tokens are made by the `tokenizer.json` beside the graph; above it, where it lies in `onnx/`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.types import AutolabelError, FloatArray

EMBEDDINGS = ("text_embeddings", "txt_feats")
_INSTALL = "pip install 'sam2-autolabel[prompts]' (in a checkout: make extra-prompts)"
Inputs = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class TextInputs:
    """What the graph gets of the texts, the same for every picture.

    Attributes:
        arrays: by name of the input.
        tokens_of: of a caption, the positions of each text's tokens; () where the graph's scores
            are by text.

    """

    arrays: Inputs
    tokens_of: tuple[tuple[int, ...], ...] = ()

    def scores(self, given: FloatArray) -> FloatArray:
        """Scores by text (Q, C) from those by token or text (Q, T): the best of its tokens."""
        if not self.tokens_of:
            return given
        return np.stack([given[:, list(tokens)].max(1) for tokens in self.tokens_of], 1)


def prompts_in(text: str) -> tuple[str, ...]:
    """Texts between commas, each once.

    Raises:
        AutolabelError: there is none.

    """
    found = tuple(dict.fromkeys(" ".join(one.split()) for one in text.split(",") if one.strip()))
    if not found:
        raise AutolabelError("the prompt is empty: name what to look for, such as 'car, person'")
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


def text_inputs(model: Path, inputs: Mapping[str, Any], prompts: Sequence[str]) -> TextInputs:
    """Make the graph's inputs of texts.

    Args:
        model: the graph's file.
        inputs: shapes of the graph's inputs, by name.
        prompts: texts.

    Raises:
        AutolabelError: a file beside the graph is missing, or it does not have a text.

    """
    for name in EMBEDDINGS:
        if name in inputs:
            vectors = _embeddings(model, prompts)
            return TextInputs({name: vectors[None] if len(inputs[name]) == 3 else vectors})
    tokenizer, width = _tokenizer(model), inputs["input_ids"][-1]
    length = width if isinstance(width, int) else None
    if "token_type_ids" in inputs:
        return _caption(tokenizer, inputs, prompts, length)
    rows = [tokenizer.encode(one) for one in prompts]
    return TextInputs(_padded([one.ids for one in rows], inputs, length))


def _embeddings(model: Path, prompts: Sequence[str]) -> FloatArray:
    path = model.with_suffix(".embeddings.npz")
    if not path.is_file():
        raise AutolabelError(
            f"{model} takes embeddings of texts: put them into {path}, each vector under its text"
        )
    try:
        with np.load(path) as stored:
            unknown = [one for one in prompts if one not in stored]
            if unknown:
                raise AutolabelError(
                    f"{path} has no embedding of {', '.join(unknown)}; it has those of "
                    f"{', '.join(stored)}"
                )
            return np.stack([stored[one].astype(np.float32).ravel() for one in prompts])
    except (OSError, ValueError) as error:
        raise AutolabelError(f"cannot read the embeddings {path}: {error}") from error


def _tokenizer(model: Path) -> Any:
    found = [path for path in files_beside(model) if path.name == "tokenizer.json"]
    if not found:
        raise AutolabelError(
            f"{model} takes tokens of texts: put its tokenizer.json into {model.parent}"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise AutolabelError(
            f"prompts of {model} need the package tokenizers: {_INSTALL}"
        ) from error
    try:
        return Tokenizer.from_file(str(found[0]))
    except Exception as error:  # the package raises nothing narrower
        raise AutolabelError(f"cannot read {found[0]}: {error}") from error


def _caption(
    tokenizer: Any, inputs: Mapping[str, Any], prompts: Sequence[str], length: int | None
) -> TextInputs:
    caption, spans = "", []
    for one in prompts:
        spans.append((len(caption), len(caption) + len(one)))
        caption += f"{one.lower()}. "
    encoded = tokenizer.encode(caption.strip())
    places = list(enumerate(encoded.offsets))
    tokens = tuple(
        tuple(place for place, (at, to) in places if to > at and start <= at < end)
        for start, end in spans
    )
    missing = [one for one, of in zip(prompts, tokens, strict=True) if not of]
    if missing:
        raise AutolabelError(f"the tokenizer has no token for {', '.join(missing)}")
    return TextInputs(_padded([encoded.ids], inputs, length), tokens)


def _padded(rows: list[list[int]], inputs: Mapping[str, Any], length: int | None) -> Inputs:
    longest = max(len(one) for one in rows)
    if length is not None and longest > length:
        raise AutolabelError(
            f"the prompt has {longest} tokens, and the detector takes {length}: use fewer words"
        )
    ids = np.zeros((len(rows), length or longest), np.int64)
    mask = np.zeros_like(ids)
    for row, one in enumerate(rows):
        ids[row, : len(one)], mask[row, : len(one)] = one, 1
    every = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: array for name, array in every.items() if name in inputs}
