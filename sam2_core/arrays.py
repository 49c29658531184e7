"""The form of arrays in dataclasses: checked when a value is made, and read-only from then on.

A form is a dtype and a shape, as docstrings give them: `"float32 (N, 4)"`. Letters are sizes that
must agree among all fields of a value. Besides numpy's dtypes, `float` is any floating dtype, and
`tuple` is no array but has a length.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt


@lru_cache(maxsize=256)
def _parsed(form: str) -> tuple[str, np.dtype[Any] | None, tuple[str | int, ...]]:
    """Return a form's kind, its dtype where it is a certain one, and its shape."""
    kind, _, shape = form.partition(" ")
    dtype = None if kind in {"tuple", "float"} else np.dtype(kind)
    sizes = (size.strip() for size in shape.strip("()").split(","))
    return kind, dtype, tuple(int(size) if size.isdigit() else size for size in sizes if size)


def check_arrays(owner: object, **forms: str) -> None:
    """Check fields of a dataclass; None passes where it is the default.

    Args:
        owner: the value, in its `__post_init__`.
        forms: the form of each field.

    Raises:
        ValueError: names the field, its expected and its given dtype and shape.

    """
    sizes: dict[str, int] = {}
    for name, form in forms.items():
        value = getattr(owner, name)
        if value is not None or getattr(type(owner), name, owner) is not None:
            _check(owner, name, value, form, sizes)


def freeze_arrays(owner: object, **forms: str) -> None:
    """As `check_arrays`, and make the arrays of a frozen dataclass read-only; nothing is copied.

    A field becomes a read-only view of the array that was given: what still holds that array may go
    on writing to it, as devices do with buffers of their own.
    """
    check_arrays(owner, **forms)
    for name in forms:
        value = getattr(owner, name)
        if isinstance(value, np.ndarray):
            object.__setattr__(owner, name, read_only(value))


def own_arrays(owner: object, **forms: str) -> None:
    """As `freeze_arrays`, of copies in the forms' dtypes: for values that callers make by hand.

    Whatever numpy makes an array of passes, as long as no value changes its kind: whole numbers may
    become floats, not the other way round. What is in an order becomes a tuple, but for a text: it
    would be its letters.
    """
    for name, form in forms.items():
        _, dtype, shape = _parsed(form)
        value = getattr(owner, name)
        if value is not None:
            own = _in_order(value) if dtype is None else _converted(value, dtype, shape)
            object.__setattr__(owner, name, own)
    freeze_arrays(owner, **forms)


class Arrays:
    """Base of dataclasses with arrays.

    Attributes:
        forms: of these fields; None passes where it is the default.
        by_hand: whether callers make them by hand, see `own_arrays`.

    """

    forms: ClassVar[Mapping[str, str]]
    by_hand: ClassVar[bool] = False

    def __post_init__(self) -> None:
        (own_arrays if self.by_hand else freeze_arrays)(self, **self.forms)


@dataclass(frozen=True, eq=False)
class Rows(Arrays):
    """Base of those with a row for each of N things in every field that has a form.

    Fields that are None have no rows.
    """

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.forms))))

    def __bool__(self) -> bool:
        # Without rows it would be false, as None is, and means something else.
        raise TypeError(
            f"{type(self).__name__} has no truth value: ask for its len(), or whether it is None"
        )

    def chosen(self, rows: slice | Sequence[int] | npt.NDArray[np.int64]) -> Self:
        """Return some rows, in this order; arrays are views where rows are a slice."""
        return replace(
            self, **{name: _rows_of(value, rows) for name, value in self._filled().items()}
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Put parts, one at least, one behind the other; what has no rows is the first one's."""
        first = parts[0]
        if len(parts) == 1:
            return first
        found = {name: [getattr(part, name) for part in parts] for name in first._filled()}
        return replace(first, **{name: _concatenated(values) for name, values in found.items()})

    def _filled(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.forms}
        return {name: value for name, value in values.items() if value is not None}


def _rows_of(value: Any, rows: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(value[row] for row in np.arange(len(value))[rows])
    return value[rows]


def _concatenated(values: list[Any]) -> Any:
    if isinstance(values[0], tuple):
        return tuple(part for value in values for part in value)
    return np.concatenate(values)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view of an array that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def _in_order(value: Any) -> Any:
    """Make a tuple of what has an order; a text, a set and a single thing stay, to be refused."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Set | Mapping):
        return tuple(value)
    return value


def _converted(
    value: npt.ArrayLike, dtype: np.dtype[Any], shape: tuple[str | int, ...]
) -> npt.NDArray[Any]:
    """Copy into a dtype; what cannot become that without a loss stays as it is, to be refused."""
    array = np.array(value)
    if not array.size and array.ndim < len(shape):
        array = np.zeros([size if isinstance(size, int) else 0 for size in shape], dtype)
    if array.dtype.kind in "iuf" and (
        not array.size or np.can_cast(array.dtype, dtype, "same_kind")
    ):
        with np.errstate(over="ignore"):  # too large becomes infinite, which is judged later
            return array.astype(dtype, copy=False)
    return array


def _check(owner: object, name: str, value: Any, form: str, sizes: dict[str, int]) -> None:
    """Refuse a value of another form; sizes that are new are learned from it."""
    kind, dtype, shape = _parsed(form)
    given: tuple[int, ...] = ()
    if kind == "tuple":
        right = isinstance(value, tuple)
        given = (len(value),) if right else ()
    elif isinstance(value, np.ndarray):
        right = value.dtype.kind == "f" if dtype is None else value.dtype == dtype
        given = value.shape
    else:
        right = False
    right = right and len(given) == len(shape)
    known = dict(sizes)
    for expected, size in zip(shape, given, strict=False):
        wanted = expected if isinstance(expected, int) else sizes.setdefault(expected, size)
        right = right and wanted == size
    if not right:
        described = type(value).__name__
        if isinstance(value, np.ndarray):
            described = f"{value.dtype} {given}"
        elif given:
            described += f" of {given[0]}"
        where = ", ".join(f"{size} = {known[size]}" for size in shape if size in known)
        raise ValueError(
            f"{type(owner).__name__}.{name}: expected {form}{where and f' with {where}'}, "
            f"got {described}"
        )
