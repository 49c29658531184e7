"""A certificate authority of a test's own."""

import datetime
from ipaddress import ip_address


class PrivateCa:
    """Signs certificates for 127.0.0.1; PEM files in a folder."""

    def __init__(self, folder):
        from cryptography.hazmat.primitives.asymmetric import ec

        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        folder.mkdir()
        self.certificate = folder / "ca.pem"
        self._own = self._signed("a private CA", self._key, None)
        self._write(self.certificate, self._own)

    def issue(self, name, address="127.0.0.1"):
        """Write a certificate and its key; returns both paths."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self._write(paths[0], self._signed(name, key, address))
        paths[1].write_bytes(
            key.private_bytes(
                form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
            )
        )  # fmt: skip
        return paths

    def _signed(self, name, key, address):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if address is None else self._own.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=address is None, path_length=None), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
            builder = builder.add_extension(names, False)
        else:
            usage = dict.fromkeys(
                ("digital_signature", "content_commitment", "key_encipherment", "encipher_only",
                 "data_encipherment", "key_agreement", "decipher_only"), False,
            )  # fmt: skip
            usage |= {"key_cert_sign": True, "crl_sign": True}
            builder = builder.add_extension(x509.KeyUsage(**usage), True)
        return builder.sign(self._key, hashes.SHA256())

    @staticmethod
    def _write(path, certificate):
        from cryptography.hazmat.primitives.serialization import Encoding

        path.write_bytes(certificate.public_bytes(Encoding.PEM))
