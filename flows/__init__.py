"""Composition: parameters, Prefect flows and the command line.

Every process of ours imports this first: what it logs from then on holds no secret.
"""

from sam2_core.redaction import install

install()
