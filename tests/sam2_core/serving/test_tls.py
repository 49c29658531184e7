"""TLS from end to end: a private CA, tokens, clients with certificates, and who is refused."""

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sam2_core.load import load_backend
from sam2_core.serving.client import Sam2Client
from sam2_core.serving.contract import DESCRIBE
from sam2_core.serving.transport import (
    Call,
    ServerError,
    Transport,
    UntrustedError,
)
from sam2_core.types import AutolabelError, ServerAbsentError
from tests.sam2_core.serving.conftest import serving
from tests.sam2_core.serving.private_ca import PrivateCa
from tests.sam2_core.serving.test_triton_server import BOXES, street


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return PrivateCa(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return PrivateCa(tmp_path_factory.mktemp("tls") / "stranger")


def trust(monkeypatch, ca, certificate="", key=""):
    """Have clients trust a CA, and show a certificate."""
    given = {"CA": ca.certificate, "CERTIFICATE": certificate, "KEY": key}
    for name, path in given.items():
        monkeypatch.setenv(f"AUTOLABEL_TRITON_{name}", str(path))


@pytest.mark.ci
def test_the_server_s_own_tls_lets_in_who_shows_a_certificate_of_the_ca(ca, stranger, monkeypatch):
    certificate, key = ca.issue("server")
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    options += ["--tls-clients", str(ca.certificate), "--host", "0.0.0.0"]
    with serving("compact", *options) as server:
        assert server["grpc"].startswith("grpcs://")
        mine = ca.issue("me")
        trust(monkeypatch, ca, *mine)
        with Sam2Client(server["grpc"], "compact") as client:
            image = client.set_image(street())
            expected = client.predict(image, boxes_xyxy_px=BOXES)
        assert asyncio.run(_asked(server["grpc"])) == expected.rle
        for trusted, *shown in ((ca,), (ca, *stranger.issue("me")), (stranger, *mine)):
            trust(monkeypatch, trusted, *shown)
            transport = Transport(server["grpc"])
            with pytest.raises((UntrustedError, ServerAbsentError), match="AUTOLABEL_TRITON_C"):
                transport.infer(Call("sam2_compact", DESCRIBE, ["info"], 20.0))
            transport.close()
        # The certificate names 127.0.0.1 alone.
        trust(monkeypatch, ca, *mine)
        transport = Transport(server["grpc"].replace("127.0.0.1", "localhost"))
        with pytest.raises(UntrustedError, match="must name this host"):
            transport.infer(Call("m", DESCRIBE, ["info"], 20.0))
        transport.close()
        load_backend("compact", "triton", triton_urls=[server["grpc"]]).close()
        # HTTP and metrics are no way around.
        trusting = ssl.create_default_context(cafile=ca.certificate)
        for url in (server["metrics"], f"{server['http']}/v2/health/ready"):
            assert url.startswith("https://")
            for other in (url, url.replace("https", "http")):
                with pytest.raises(httpx.TransportError):
                    httpx.get(other, verify=trusting, trust_env=False)


async def _asked(url):
    from sam2_core.serving.async_client import AsyncSam2Client, SupersededError

    async with AsyncSam2Client(url, "compact") as client:
        image = await client.set_image(street())
        asked = [client.predict(image, boxes_xyxy_px=BOXES, session="a tab") for _ in range(3)]
        _, second, last = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(second, SupersededError)
        assert (await client.predict(image, boxes_xyxy_px=BOXES)).rle == last.rle
        return last.rle


def test_files_that_a_server_cannot_use_are_refused_before_it_starts(ca):
    from click.testing import CliRunner

    from flows.cli.serve import command

    one, other = ca.issue("one"), ca.issue("other")
    for given, says in (
        (["--tls-certificate", one[0], "--tls-key", other[1]], "another certificate"),
        (["--tls-certificate", one[1], "--tls-key", one[1]], "not PEM files"),
        (["--tls-clients", ca.certificate], "needs --tls-certificate"),
    ):
        told = CliRunner().invoke(command, ["compact", *map(str, given)])
        assert told.exit_code == 2
        assert says in " ".join(told.output.split())


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file"), ("hello", "cannot be used"),
     ("-----BEGIN CERTIFICATE-----\nhello\n", "cannot be used")],
)  # fmt: skip
def test_files_of_tls_that_are_none_are_refused_by_name(tmp_path, monkeypatch, content, says):
    pytest.importorskip("tritonclient.grpc", reason="no Triton client: make dev installs it")
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("AUTOLABEL_TRITON_CA", str(path))
    with pytest.raises(AutolabelError, match=f"{path}.*{says}"):
        Transport("grpcs://127.0.0.1:9")
    monkeypatch.delenv("AUTOLABEL_TRITON_CA")
    monkeypatch.setenv("AUTOLABEL_TRITON_CERTIFICATE", __file__)
    with pytest.raises(AutolabelError, match="go together"):
        Transport("grpcs://127.0.0.1:9")


def test_a_token_reaches_what_stands_before_the_server_and_its_refusal_is_told(monkeypatch):
    pytest.importorskip("tritonclient.grpc", reason="no Triton client: make dev installs it")
    import grpc

    seen = []

    class Refusing(grpc.GenericRpcHandler):
        def service(self, details):
            seen.append(dict(details.invocation_metadata)["authorization"])
            return grpc.unary_unary_rpc_method_handler(
                lambda _, call: call.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
            )

    proxy = grpc.server(ThreadPoolExecutor(1), [Refusing()])
    port = proxy.add_insecure_port("127.0.0.1:0")
    proxy.start()
    monkeypatch.setenv("AUTOLABEL_TRITON_TOKEN", "word-of-mine")
    transport = Transport(f"grpc://127.0.0.1:{port}")
    with pytest.raises(ServerError, match="who are you") as caught:
        transport.infer(Call("m", DESCRIBE, ["info"], 20.0))
    transport.close()
    proxy.stop(None)
    assert set(seen) == {"Bearer word-of-mine"}
    assert "AUTOLABEL_TRITON_TOKEN" in str(caught.value)
    assert "word-of-mine" not in str(caught.value)
