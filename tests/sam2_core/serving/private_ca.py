"""A certificate authority of a test's own, and proxies that end TLS and want a token."""

import datetime
import http.server
import ssl
import threading
from contextlib import contextmanager
from ipaddress import ip_address

import httpx

TOKEN = "word-of-mine"


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


@contextmanager
def https_proxy(target, certificate, key):
    """Yield the address of a proxy before Triton's HTTP that speaks TLS and wants the token."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                self._answer(401, {}, b"who are you?")
                return
            passed = ("content-type", "inference-header-content-length")
            given = {name: self.headers[name] for name in passed if name in self.headers}
            found = httpx.post(
                target + self.path, content=body, headers=given, timeout=60, trust_env=False
            )
            told = {name: found.headers[name] for name in passed if name in found.headers}
            self._answer(found.status_code, told, found.content)

        def _answer(self, status, headers, content):
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Server(http.server.ThreadingHTTPServer):
        def finish_request(self, request, client_address):
            # The handshake belongs to the connection's own thread; one that fails is its client's.
            try:
                secured = context.wrap_socket(request, server_side=True)
            except OSError:
                return
            super().finish_request(secured, client_address)
            secured.close()

    proxy = Server(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{proxy.server_port}"
    proxy.shutdown()
    thread.join()
    proxy.server_close()


@contextmanager
def grpcs_proxy(target, certificate, key):
    """Yield the address of a proxy before Triton's gRPC that speaks TLS and wants the token."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    no_limit = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = grpc.insecure_channel(target.removeprefix("grpc://"), no_limit)

    class Proxy(grpc.GenericRpcHandler):
        def service(self, details):
            send = channel.unary_unary(details.method)

            def passed(request, context):
                if dict(details.invocation_metadata).get("authorization") != f"Bearer {TOKEN}":
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
                try:
                    return send(request, timeout=60)
                except grpc.RpcError as error:
                    context.abort(error.code(), error.details())

            return grpc.unary_unary_rpc_method_handler(passed)

    proxy = grpc.server(ThreadPoolExecutor(4), [Proxy()], options=no_limit)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    port = proxy.add_secure_port("127.0.0.1:0", credentials)
    proxy.start()
    yield f"grpcs://127.0.0.1:{port}"
    proxy.stop(None).wait()
    channel.close()
