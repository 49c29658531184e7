"""Packages that FiftyOne imports and that loading labels never uses: imported at their first use.

Importing FiftyOne takes seconds of CPU time, two thirds of it for packages like scikit-learn, SciPy
and Plotly, which its plots, evaluations and sessions use. Here such an import gives the module
without running its code; the code runs, in that very module, when somebody first asks for one of
its names. So everything works as it does without this, and what is not used costs nothing.

`importlib.util.LazyLoader` does not do for packages: importing anything below a lazy one, or the
same one again, runs it.
"""

import contextlib
import importlib
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

# With everything below them. FiftyOne says `import X.Y as y` of these, and uses y in functions.
_PACKAGES = {"dill", "matplotlib", "pandas", "plotly", "py7zr", "pydash", "rarfile", "scipy"}
_PACKAGES |= {"sklearn", "tabulate"}
# Modules of FiftyOne's own, and of all of these the names that it takes when it is imported.
_NAMES: dict[str, set[str]] = {
    "fiftyone.core.session": {"Session", "close_app", "launch_app"},
    "fiftyone.server.view": set(),
    "matplotlib.colors": {"CSS4_COLORS"},
    "scipy.spatial.transform": {"Rotation"},
    "tabulate": {"tabulate"},
}
# What `from X import y` has to take for a module.
_CHILDREN = {"matplotlib": {"colors"}}
# Asked for by Python's own machinery where a module need not have them.
_MACHINERY = {"__cached__", "__file__", "__path__", "__warningregistry__", "__wrapped__"}
# What a load uses beside FiftyOne itself, which reads its database's address when it is imported.
_AROUND = ("eta.core.annotations", "eta.core.learning", "mongoengine", "motor.motor_asyncio")
# Held while the code of one of them runs; others that ask for a name of any wait.
_lock = threading.RLock()
_running: set[str] = set()


def import_later() -> None:
    """Let these packages be imported at their first use, where they are not imported yet."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def import_around_fiftyone() -> None:
    """Import half of what a load needs, FiftyOne's database being on its way."""
    import_later()
    for name in _AROUND:
        with contextlib.suppress(ImportError):  # told where it is used, if it is
            getattr(importlib.import_module(name), "__all__", ())  # runs what would wait


class _Finder(MetaPathFinder):
    """Finds what everybody finds, and has it run later."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None for what is imported as ever."""
        if not _waits(name):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceLoader):
            return None
        spec.loader = _LaterLoader(spec.loader)
        return spec


def _waits(name: str) -> bool:
    """Whether a module is one of these; what a package that runs imports of itself runs at once."""
    root = name.partition(".")[0]
    if root not in _PACKAGES:
        return name in _NAMES
    return name == root or _untouched(root)


def _untouched(name: str) -> bool:
    """Whether neither a module nor, of such a package, the package has started to run."""
    root = name.partition(".")[0]
    ours = (root, name) if root in _PACKAGES else (name,)
    return all(isinstance(sys.modules.get(one), _Later) and one not in _running for one in ours)


class _LaterLoader(Loader):
    def __init__(self, real: SourceLoader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Later(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing; from now on the module says who really loads it."""
        spec = cast("ModuleSpec", module.__spec__)
        spec.loader = module.__loader__ = self._real


class _Later(ModuleType):
    """A module that is there, with its place and no names, until one of them is asked for."""

    def __getattr__(self, name: str) -> Any:
        own = self.__name__
        if name in _MACHINERY or name in _CHILDREN.get(own, ()):
            raise _no(own, name)
        if name in _NAMES.get(own, ()) and _untouched(own):
            return _Name(own, name)
        _run(self)
        return getattr(self, name)


def _run(module: ModuleType) -> None:
    """Run the code of a module and, first, of the packages that it lies in."""
    name = module.__name__
    with _lock:
        parent = sys.modules.get(name.rpartition(".")[0])
        if isinstance(parent, _Later) and parent.__name__ not in _running:
            _run(parent)
        if not isinstance(module, _Later):
            return
        if name in _running:
            raise _no(name)
        _running.add(name)
        try:
            cast("SourceLoader", module.__loader__).exec_module(module)
        finally:
            _running.discard(name)
        ran: Any = module
        ran.__class__ = ModuleType


def _no(module: str, name: str = "") -> AttributeError:
    return AttributeError(f"module {module!r} has no attribute {name!r} yet")


class _Name:
    """A function, class or table that is taken out of a module before the module has run."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _itself(self) -> Any:
        module = sys.modules[self._module]
        _run(module)
        return getattr(module, self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._itself()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._itself(), name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._itself())

    def __contains__(self, key: object) -> bool:
        # FiftyOne looks for each colour of a dataset among the names of colours first.
        return not (isinstance(key, str) and key.startswith("#")) and key in self._itself()
