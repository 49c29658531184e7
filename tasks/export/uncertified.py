"""Which labels were made with --allow-uncertified, and what the certificate said then."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.store.manifests import Manifest, read_reports


def uncertified_runs(out_uri: str, manifests: Iterable[Manifest]) -> dict[str, str]:
    """Return the verdict on the engine of each run that was used whatever it is.

    Returns:
        {run_key: the verdict that the run's reports have, several joined, "unknown" for none}.

    """
    stamps = [one.stamp for one in manifests]
    keys = sorted({one.run_key for one in stamps if one.parameters.get("allow_uncertified")})
    return {key: _verdict(out_uri, key) for key in keys}


def _verdict(out_uri: str, run_key: str) -> str:
    told = [report.get("certificate") or {} for report in read_reports(out_uri, run_key)]
    return ", ".join(sorted({one["verdict"] for one in told if "verdict" in one})) or "unknown"
