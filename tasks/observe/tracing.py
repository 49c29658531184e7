"""OpenTelemetry traces of flow and task runs, behind a switch: `AUTOLABEL_TRACES=1`.

Prefect makes a span of every flow and task run, where a tracer is installed; this installs
one. Where spans go is told by OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, ...).
"""

import logging
import os

SWITCH = "AUTOLABEL_TRACES"

log = logging.getLogger(__name__)
_installed = False


def install() -> bool:
    """Install the tracer once, where it is switched on; call before a flow run begins.

    Returns whether spans are exported. Without the extra `otel` a warning says so.
    """
    global _installed  # noqa: PLW0603
    if _installed or os.environ.get(SWITCH, "").lower() not in {"1", "true", "yes"}:
        return _installed
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("%s is set, but the extra is missing: install sam2-autolabel[otel]", SWITCH)
        return False
    provider = TracerProvider(resource=Resource.create({"service.name": "sam2-autolabel"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _installed = True
    return True
