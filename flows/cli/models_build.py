"""`autolabel models build`: TensorRT engines for this machine's GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from flows.cli.common_options import GRAPH, cache_option, json_option
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.backends.model_folder import ModelFolder
    from sam2_core.backends.tensorrt_build import BuildOptions
    from sam2_core.resolve import Wanted


def numbers(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Read numbers with commas between them."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"expected numbers separated by commas, got {text!r}") from None


@click.command("build")
@click.argument("model", default="compact")
@click.option(
    "--precision",
    type=click.Choice(["fp16", "fp32"]),
    default="fp16",
    help="Precision of the exported graph and its engines.",
)
@click.option("--graph", type=GRAPH, default="restructured", help="Which exported graph.")
@click.option(
    "--box-buckets",
    callback=numbers,
    show_default="1,8,32,64,128",
    help="Boxes in one decoder call; each size gets its own tuned kernels.",
)
@click.option(
    "--image-buckets",
    callback=numbers,
    show_default="1,2,4,8; of close-ups 1,8,32,64",
    help="Frames, or close-ups, in one encoder call.",
)
@click.option("--device", "index", type=click.IntRange(min=0), default=0, help="CUDA device.")
@click.option(
    "--optimization-level",
    type=click.IntRange(0, 5),
    default=3,
    help="0 builds fastest, 5 runs fastest.",
)
@click.option(
    "--refittable", is_flag=True, help="Build engines that accept another checkpoint's weights."
)
@click.option(
    "--refit-from",
    metavar="MODEL",
    help="Refit this model's engines (built with --refittable); takes seconds.",
)
@cache_option
@json_option
def command(**given: Any) -> None:
    """Build TensorRT engines from an exported model, for the GPU of this machine.

    Engines are stored by GPU, TensorRT version, graph and buckets, and built once.
    Labeling builds what it lacks by itself: this only does it ahead of time.
    """
    from rich.console import Console

    from sam2_core.backends.tensorrt_backend import require_tensorrt
    from sam2_core.resolve import Wanted

    require_tensorrt()
    console = Console(stderr=True)
    with console.status(f"resolving {given['model']}") as status:
        wanted = Wanted(
            given["precision"],
            given["graph"],
            given["cache"],
            lambda text: status.update(str(text)),
        )
        folder, source = _resolved(given["model"], wanted), None
        if given["refit_from"]:
            source = _resolved(given["refit_from"], wanted)
        built = _build(folder, source, _options(folder, given), given["index"], status.update)
    if given["as_json"]:
        click.echo(json.dumps({"model": str(folder.path), "engines": built}))
        return
    for engine in built:
        click.echo(f"{engine['graph']}: {engine['path']} ({engine['how']})")


def _resolved(model: str, wanted: Wanted) -> ModelFolder:
    """Return a model as labeling uses it: for close-ups where it has them."""
    from sam2_core.resolve import resolve_model

    return resolve_model(model, wanted).for_close_ups(None)


def _options(folder: ModelFolder, given: dict[str, Any]) -> BuildOptions:
    from sam2_core.backends.tensorrt_backend import buckets_for
    from sam2_core.backends.tensorrt_build import BuildOptions

    return BuildOptions(
        buckets_for(folder, given["box_buckets"], given["image_buckets"]),
        refittable=given["refittable"] or given["refit_from"] is not None,
        optimization_level=given["optimization_level"],
    )


def _build(
    folder: ModelFolder, source: ModelFolder | None, options: BuildOptions, index: int, note: Any
) -> list[dict[str, Any]]:
    from sam2_core.backends.cuda_device import CudaDevice
    from sam2_core.backends.tensorrt_backend import engines_folder, graphs_of
    from sam2_core.backends.tensorrt_build import build_engine, engine_path, refit_engine

    gpu = CudaDevice(index).name
    engines = engines_folder(folder.cache)
    built = []
    for kind in graphs_of(folder):
        path = engine_path(folder.graph(kind), gpu, engines, options)
        if source is not None and not path.is_file():
            old = engine_path(source.graph(kind), gpu, engines, options)
            if not old.is_file():
                raise AutolabelError(
                    f"{source.path} has no refittable engine of {kind} for {gpu}: run `autolabel "
                    "models build --refittable` for it first, with the same buckets"
                )
            note(f"refitting {kind}")
            refit_engine(old, folder.graph(kind), path)
            how = "refitted"
        else:
            engine = build_engine(
                folder.graph(kind), kind, gpu=gpu, engines_dir=engines, options=options, note=note
            )
            how = "was there" if engine.cached else f"built in {engine.seconds:.0f} s"
        built.append({"graph": kind, "path": str(path), "how": how})
    return built
