"""Print the whole public TensorRT Python API as JSON; run in a process of its own.

Needs LD_LIBRARY_PATH to hold libraries that export the entry points which the bindings look up at
load time; what those functions do is never asked for.
"""

import inspect
import json

import tensorrt_bindings as trt

DUNDERS = {"__init__", "__len__", "__getitem__"}


def describe_class(cls: type) -> dict[str, object]:
    methods, properties, members, nested = {}, {}, [], {}
    for name, value in vars(cls).items():
        if name.startswith("_") and name not in DUNDERS:
            continue
        if isinstance(value, property) or type(value).__name__ == "property":
            properties[name] = [value.fget.__doc__ or "", value.fset is not None]
        elif inspect.isclass(value):
            nested[name] = describe_class(value)
        elif type(value) is cls or type(value).__name__ == "Severity":
            members.append([name, type(value).__name__])
        elif type(value).__name__ == "pybind11_static_property":
            continue
        elif callable(value):
            methods[name] = value.__doc__ or ""
    return {
        "bases": [base.__name__ for base in cls.__bases__ if base.__module__ == cls.__module__],
        "is_enum": hasattr(cls, "__members__"),
        "methods": methods,
        "properties": properties,
        "members": members,
        "nested": nested,
    }


public = [name for name in dir(trt) if not name.startswith("_")]
classes = {name: getattr(trt, name) for name in public if inspect.isclass(getattr(trt, name))}
print(
    json.dumps(
        {
            "version": trt.__version__,
            "classes": {name: describe_class(cls) for name, cls in classes.items()},
            "functions": [
                name
                for name in public
                if inspect.isroutine(getattr(trt, name)) and name not in classes
            ],
        }
    )
)
