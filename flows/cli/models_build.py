"""`autolabel models build`: TensorRT engines for this machine's GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli.common_options import GRAPH, cache_option, json_option, print_json
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.backends.model_folder import ModelFolder
    from sam2_core.backends.tensorrt_build import BuildOptions


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
def build(
    model: str,
    precision: str,
    graph: str,
    box_buckets: tuple[int, ...],
    image_buckets: tuple[int, ...],
    index: int,
    optimization_level: int,
    refittable: bool,
    refit_from: str | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Build TensorRT engines from an exported model, for the GPU of this machine.

    Engines are stored by GPU, TensorRT version, graph and buckets, and built once.
    Labeling builds what it lacks by itself: this only does it ahead of time.
    """
    from rich.console import Console

    from sam2_core.backends.tensorrt_backend import buckets_for, require_tensorrt
    from sam2_core.backends.tensorrt_build import BuildOptions
    from sam2_core.resolve import Wanted, resolve_model

    require_tensorrt()
    with Console(stderr=True).status(f"resolving {model}") as status:
        wanted = Wanted(precision, graph, cache, lambda text: status.update(str(text)))
        # As labeling uses it: for close-ups where it has them.
        folder = resolve_model(model, wanted).for_close_ups(None)
        source = resolve_model(refit_from, wanted).for_close_ups(None) if refit_from else None
        options = BuildOptions(
            buckets_for(folder, box_buckets, image_buckets),
            refittable=refittable or refit_from is not None,
            optimization_level=optimization_level,
        )
        engines = _build(folder, source, options, index, status.update)
    if not print_json(as_json, {"model": str(folder.path), "engines": engines}):
        for engine in engines:
            click.echo(f"{engine['graph']}: {engine['path']} ({engine['how']})")


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
