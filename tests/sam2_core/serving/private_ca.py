"""A certificate authority of a test's own."""

import shutil
import subprocess

import pytest


class PrivateCa:
    """Signs certificates, for 127.0.0.1 if not for others; PEM files in a folder."""

    def __init__(self, folder):
        if shutil.which("openssl") is None:
            pytest.skip("no openssl command here")
        folder.mkdir()
        self._folder = folder
        self.certificate, self._key = self._made("ca")

    def issue(self, name, address="127.0.0.1"):
        """Write a certificate and its key; returns both paths."""
        by = ["-CA", self.certificate, "-CAkey", self._key, "-addext", "basicConstraints=CA:FALSE"]
        return self._made(name, *by, "-addext", f"subjectAltName=IP:{address}")

    def _made(self, name, *options):
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "1", "-subj", f"/CN={name}", "-out", paths[0],
             "-keyout", paths[1], *options],
            check=True, capture_output=True,
        )  # fmt: skip
        return paths
