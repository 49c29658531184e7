"""The described API as a `tensorrt.pyi`, so that mypy can hold source against it."""

from __future__ import annotations

import keyword
import re
from typing import Any

HEADER = """\
import os
from collections.abc import Sequence
from typing import Any, SupportsFloat, SupportsIndex, SupportsInt, overload
from typing_extensions import Buffer

__version__: str
"""
# Plain Python functions of the package: their docstrings hold no types.
FUNCTIONS = {"nptype": "def nptype(trt_type: DataType) -> type[Any]: ..."}
# pybind11 writes these where it knows no Python name; and converts them from Python values.
KNOWN = {
    "str", "int", "float", "bool", "None", "object", "list", "tuple", "dict", "bytes", "Any",
    "Sequence", "SupportsInt", "SupportsFloat", "SupportsIndex", "Buffer",
}  # fmt: skip
# The buffer protocol, which no docstring mentions.
BUFFERS = {"IHostMemory"}
# Null pointers on failure, which the signatures do not say: callers must look.
NULLABLE = {"build_serialized_network", "deserialize_cuda_engine", "create_execution_context"}


def split_top_level(text: str, separator: str = ",") -> list[str]:
    """Split outside any brackets."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == separator and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [part.strip() for part in [*parts, current] if part.strip()]


class StubWriter:
    """Writes the stub of one described API."""

    def __init__(self, api: dict[str, Any]) -> None:
        self.api = api
        self.names = set(api["classes"]) | KNOWN
        for cls in api["classes"].values():
            self.names |= set(cls["nested"])

    def text(self) -> str:
        """The whole stub."""
        lines = [HEADER]
        lines += [text for name, text in FUNCTIONS.items() if name in self.api["functions"]]
        for name, cls in self.api["classes"].items():
            lines += self.class_lines(name, cls, "")
        return "\n".join(lines) + "\n"

    def type_of(self, text: str, owner: str = "") -> str:
        """Translate a type of a docstring; what has no Python name is Any."""
        text = re.sub(
            r"\b(tensorrt_bindings\.tensorrt|typing_extensions|typing|collections\.abc)\.", "", text
        )
        text = re.sub(r"(?:\w+::)+(\w+)", self.python_name, text)
        nested = self.api["classes"].get(owner, {}).get("nested", {})

        def known(match: re.Match[str]) -> str:
            name = match.group(0)
            if name in nested:
                return f"{owner}.{name}"
            return name if name.split(".")[0] in self.names else "Any"

        return re.sub(r"[A-Za-z_][\w.]*", known, text.strip())

    def python_name(self, match: re.Match[str]) -> str:
        """Name of a C++ type that the signature gives as such: nvonnxparser::IParserError."""
        name = match.group(1)
        return next((known for known in (name, name[1:]) if known in self.names), "Any")

    def class_lines(self, name: str, cls: dict[str, Any], indent: str) -> list[str]:
        bases = [base for base in cls["bases"] if base in self.names]
        lines = [
            f"{indent}class {name}({', '.join(bases)}):" if bases else f"{indent}class {name}:"
        ]
        inner = indent + "    "
        for nested_name, nested in cls["nested"].items():
            lines += self.class_lines(nested_name, nested, inner)
        lines += [
            f"{inner}{member}: {name if kind == name else 'Any'}" for member, kind in cls["members"]
        ]
        if cls["is_enum"]:
            lines += [
                f"{inner}def __int__(self) -> int: ...",
                f"{inner}def __index__(self) -> int: ...",
            ]
        if name in BUFFERS:
            lines.append(f"{inner}def __buffer__(self, flags: int) -> memoryview: ...")
        for property_name, (doc, settable) in cls["properties"].items():
            result = re.search(r"->\s*(.+)", doc)
            kind = self.type_of(result.group(1), name) if result else "Any"
            lines += [f"{inner}@property", f"{inner}def {property_name}(self) -> {kind}: ..."]
            if settable:
                value = "Any" if kind not in {"int", "bool", "str"} else kind
                lines += [
                    f"{inner}@{property_name}.setter",
                    f"{inner}def {property_name}(self, value: {value}) -> None: ...",
                ]
        if {"__len__", "__getitem__"} <= set(cls["methods"]):
            # Python iterates over anything that has both; mypy wants it said.
            lines.append(f"{inner}def __iter__(self) -> Any: ...")
        for method, doc in cls["methods"].items():
            lines += self.method_lines(method, doc, name, inner)
        if len(lines) == 1:
            lines.append(f"{inner}...")
        return lines

    def method_lines(self, method: str, doc: str, owner: str, indent: str) -> list[str]:
        pattern = re.compile(rf"^(?:\d+\. )?{method}\((self: .*)\)(?: -> (.+))?$", re.MULTILINE)
        signatures = pattern.findall(doc)
        lines = []
        for arguments, result in signatures:
            if len(signatures) > 1:
                lines.append(f"{indent}@overload")
            parameters = ["self"]
            for argument in split_top_level(arguments)[1:]:
                parameter = self.parameter(argument, owner)
                # C++ allows what Python does not: a required argument after an optional one.
                if "=" in "".join(parameters) and "=" not in parameter:
                    parameter += " = ..."
                parameters.append(parameter)
            returned = "None" if method == "__init__" else self.type_of(result or "Any", owner)
            returned += " | None" if method in NULLABLE else ""
            lines.append(f"{indent}def {method}({', '.join(parameters)}) -> {returned}: ...")
        return lines

    def parameter(self, argument: str, owner: str) -> str:
        name, _, rest = argument.partition(":")
        kind, has_default, _ = rest.partition(" = ")
        name = name.strip()
        if keyword.iskeyword(name) or not name.isidentifier():
            return "/" if name == "/" else "*args: Any"
        kind = self.type_of(kind, owner)
        # The bindings convert any sequence of ints to Dims.
        kind = re.sub(r"\bDims\b", "Dims | Sequence[int]", kind)
        return f"{name}: {kind} = ..." if has_default else f"{name}: {kind}"
