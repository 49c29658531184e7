"""Workers on two hosts, set up as docs/nightly.md says, over a slow and lossy wire.

The first host has Prefect's server, PostgreSQL, S3 and MongoDB, with TLS and passwords; the second
one's clock is five minutes behind. The wire is cut for a minute, then the second host is killed.
A host is a set of namespaces (network, hostname, processes), and the wire a thread that carries
packets between their TUN devices: it delays and loses them as `tc netem` would, which not every
kernel has. `AUTOLABEL_TWO_HOSTS=SEQUENCES:FRAMES` makes it smaller or larger.
"""

import contextlib
import fcntl
import json
import os
import random
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import psutil
import pytest

from flows.server.process import SETTINGS
from tasks.dataset import database
from tests.integration.cluster import AUTOLABEL, wait_for
from tests.integration.runs import MICRO, REPOSITORY, files_below, write_sequence
from tests.sam2_core.serving.private_ca import PrivateCa

SEQUENCES, FRAMES = map(int, os.environ.get("AUTOLABEL_TWO_HOSTS", "60:12").split(":"))
DELAY_S, LOSS, CUT_S, BEHIND_S = 0.01, 0.01, 60.0, 300
PATIENCE_S = 600.0  # of a busy machine
FIRST, SECOND, STRANGER = "10.77.0.1", "10.77.0.2", "10.77.0.3"
PREFECT, S3 = f"https://{FIRST}:4200", f"https://{FIRST}:9000"
PASSWORD = "planted-in-two-hosts"
POSTGRES = """
import pathlib, time
from flows.server.postgres import Postgres
print(Postgres(pathlib.Path("postgres").absolute()).url, flush=True)
time.sleep(1e6)
"""
# moto's own server stands still while a client that was cut off owes it a part of TLS' handshake.
MOTO = """
import sys, urllib.parse, uvicorn
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
host, certificate, key = sys.argv[1:]
moto = DomainDispatcherApplication(create_backend_app)
def serve(environment, start):  # bodies come in chunks, without a length
    path = urllib.parse.quote(environment["PATH_INFO"])  # as it was signed
    return moto(environment | {"RAW_URI": path, "wsgi.input_terminated": True}, start)
uvicorn.run(serve, interface="wsgi", host=host, port=9000, ssl_certfile=certificate,
            ssl_keyfile=key)
"""
MONGO_USER = """
import pymongo, sys
create = pymongo.MongoClient(sys.argv[1]).admin.command
create("createUser", "autolabel", pwd=sys.argv[2], roles=["root"])
"""
# From the last line on S3 asks for a signature, and lets its user do what its policy says.
FILL_S3 = """
import boto3, httpx, json, s3fs, ssl, sys
policy, folder, url, ca = sys.argv[1:]
for bucket, names in {"labels": (), "drives": ("in", "boxes")}.items():
    s3fs.S3FileSystem().mkdir(bucket)
    for name in names:
        s3fs.S3FileSystem().put(f"{folder}/{name}/", f"{bucket}/{name}/", recursive=True)
iam = boto3.client("iam")
iam.create_user(UserName="autolabel")
iam.put_user_policy(UserName="autolabel", PolicyName="documented", PolicyDocument=policy)
key = iam.create_access_key(UserName="autolabel")["AccessKey"]
print(json.dumps({"AWS_ACCESS_KEY_ID": key["AccessKeyId"],
                  "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}))
trusting = ssl.create_default_context(cafile=ca)
httpx.post(f"{url}/moto-api/reset-auth", content="0", verify=trusting).raise_for_status()
"""
COPY_OUT = """
import s3fs, sys
from tests.integration.cluster import every_frame_once
print(every_frame_once("s3://drives/in", "s3://labels/out", sys.argv[1]))
s3fs.S3FileSystem().get("labels/out/", sys.argv[2], recursive=True)
"""
# Knows the authority, which is no secret, and guesses a password.
ATTACKS = """
import boto3, httpx, json, pymongo, ssl, sys
prefect, s3, mongo, ca = sys.argv[1:]
trusting = ssl.create_default_context(cafile=ca)
def said(ask):
    try:
        return ask()
    except Exception as error:
        return getattr(error, "response", {}).get("Error", {}).get("Code") or type(error).__name__
def settings(url, auth=None):
    return httpx.get(f"{url}/api/admin/settings", auth=auth, verify=trusting).status_code
def databases(address):
    client = pymongo.MongoClient(address, serverSelectionTimeoutMS=3000)
    return client.list_database_names()
boxes = dict(Bucket="drives", Key="boxes/drive000/0000.txt")
tls = f"tls=true&tlsCAFile={ca}"
print(json.dumps([
    said(lambda: settings(prefect)), said(lambda: settings(prefect, ("admin", "guessed"))),
    said(lambda: settings(prefect.replace("https", "http"))),
    said(lambda: databases(f"mongodb://{mongo}/?{tls}")),
    said(lambda: databases(f"mongodb://autolabel:guessed@{mongo}/?authSource=admin&{tls}")),
    said(lambda: databases(f"mongodb://{mongo}/")),
    said(lambda: boto3.client("s3", endpoint_url=s3, verify=ca, region_name="us-east-1",
         aws_access_key_id="guessed", aws_secret_access_key="guessed").get_object(**boxes)),
]))
"""
REFUSED = [
    401, 401, "RemoteProtocolError", "OperationFailure", "OperationFailure",
    "ServerSelectionTimeoutError", "InvalidAccessKeyId",
]  # fmt: skip


TUNSETIFF, IFF_TUN_NO_PI = 0x400454CA, 0x1001
OWN = ("--net", "--uts", "--ipc", "--mount", "--pid")
# libfaketime of Debian 12 breaks time.sleep of Python 3.11.
CLOCK = """#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && clock == CLOCK_REALTIME) now->tv_sec -= BEHIND_S;
  return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *where) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (where) *where = exact.tv_sec;
  return exact.tv_sec;
}
"""


def clock_behind(seconds, folder):
    """Compile what gives programs that preload it such a clock; returns its path."""
    library = str(folder / f"clock{seconds}.so")
    options = ["-shared", "-fPIC", f"-DBEHIND_S={seconds}", "-o", library, "-xc", "-"]
    subprocess.run(["cc", *options], input=CLOCK, text=True, check=True)
    return library


class Host:
    """Its `folder` is its home, with a log of each program, and has its name."""

    def __init__(self, folder, address):
        self.folder, self.address = folder, address
        (folder / "tmp").mkdir(parents=True)
        own = {"HOME": folder, "TMPDIR": folder / "tmp", "AUTOLABEL_CACHE": folder / "cache"}
        self.own = {name: str(path) for name, path in own.items()}
        self.environment = os.environ | self.own
        start = f"hostname {folder.name} && ip link set lo up && exec sleep infinity"
        self.unshare = subprocess.Popen([
            "setpriv", "--pdeathsig", "KILL", "unshare", *OWN, "--fork", "--kill-child",
            "--mount-proc", "sh", "-c", start,
        ])  # fmt: skip
        child = psutil.Process(self.unshare.pid).children
        self.init = wait_for(lambda: [one.pid for one in child() if one.name() == "sleep"])[0]

    def command(self, *command):
        return ["nsenter", "--target", str(self.init), *OWN, "--wd=.", *map(str, command)]

    def output(self, *command):
        return subprocess.check_output(
            self.command(*command), cwd=REPOSITORY, env=self.environment, text=True
        )

    def start(self, name, *command, **environment):
        """Start a program there, with a log of that name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self.command(*command), cwd=self.folder, env=self.environment | environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def labels(self):
        """Whether a flow run's process is there."""
        return "prefect.engine" in self.output("ps", "-eo", "args")

    def labeled(self):
        """Names of the sequences that its workers completed."""
        return set(re.findall(r"'check (\w+)' - Finished in state Completed", self.log("worker")))

    def listens(self):
        """Where others reach it: addresses with ports, but for the loopback device's."""
        found = {line.split()[4] for line in self.output("ss", "-Hltun").splitlines()}
        return {one for one in found if not one.startswith(("127.0.0.1:", "[::1]:"))}


class Wire:
    """Joins hosts until all are killed; those whose addresses are in `cut_off` get nothing."""

    def __init__(self, hosts):
        self.cut_off, self.packets = set(), {False: 0, True: 0}  # by whether they were lost
        self.ends = {host.address: self.end_of(host) for host in hosts}
        threading.Thread(target=self.carry, daemon=True).start()

    def end_of(self, host):
        end = os.open("/dev/net/tun", os.O_RDWR)
        asked = struct.pack("16sH14x", b"wire%d", IFF_TUN_NO_PI)
        name = fcntl.ioctl(end, TUNSETIFF, asked)[:16].rstrip(b"\0").decode()
        subprocess.run(["ip", "link", "set", name, "netns", str(host.init)], check=True)
        host.output("ip", "address", "add", f"{host.address}/24", "dev", name)
        host.output("ip", "link", "set", name, "up")
        return end

    def carry(self):
        under_way = deque()
        while self.ends:
            due_s = under_way[0][0] - time.monotonic() if under_way else 0.1
            ready, _, _ = select.select([*self.ends.values()], [], [], max(due_s, 0))
            for source in [at for at, end in self.ends.items() if end in ready]:
                try:
                    packet = os.read(self.ends[source], 65536)
                except OSError:  # its host was killed
                    os.close(self.ends.pop(source))
                    continue
                target = socket.inet_ntoa(packet[16:20])
                is_lost = bool(self.cut_off & {source, target}) or random.random() < LOSS
                self.packets[is_lost] += 1
                if target in self.ends and not is_lost:
                    under_way.append((time.monotonic() + DELAY_S, target, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, target, packet = under_way.popleft()
                with contextlib.suppress(OSError, KeyError):  # of a host that was killed
                    os.write(self.ends[target], packet)


def serve(host, ca, certificate, key, folder):
    """Start everything but workers on the first host, and tell its processes where that is."""
    both = folder / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    host.start("postgres", sys.executable, "-c", POSTGRES)
    host.start("s3", sys.executable, "-c", MOTO, FIRST, certificate, key)
    (host.folder / "mongo").mkdir()
    host.start(
        "mongod", database.find_mongod(), "--dbpath", host.folder / "mongo", "--noscripting",
        "--bind_ip", f"127.0.0.1,{FIRST}", "--auth", "--tlsMode", "requireTLS",
        "--tlsCertificateKeyFile", both, "--tlsCAFile", ca.certificate,
        "--tlsAllowConnectionsWithoutCertificates", "--unixSocketPrefix", host.folder,
        **database._environment(host.folder),
    )  # fmt: skip
    own = SETTINGS | {
        "PREFECT_API_DATABASE_CONNECTION_URL": wait_for(
            lambda: host.log("postgres").strip(), PATIENCE_S
        ),
        "PREFECT_SERVER_API_AUTH_STRING": f"admin:{PASSWORD}",
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": PREFECT,
    }
    host.start(
        "prefect", AUTOLABEL.parent / "uvicorn", "--factory",
        "prefect.server.api.server:create_app", "--host", FIRST, "--port", "4200",
        "--ssl-certfile", certificate, "--ssl-keyfile", key, **own,
    )  # fmt: skip
    tls = f"tls=true&tlsCAFile={ca.certificate}"
    host.environment |= {
        "PREFECT_API_URL": f"{PREFECT}/api",
        "PREFECT_API_SSL_CERT_FILE": str(ca.certificate),
        "PREFECT_API_AUTH_STRING": f"admin:{PASSWORD}",
        "FIFTYONE_DATABASE_URI": f"mongodb://autolabel:{PASSWORD}@{FIRST}/?authSource=admin&{tls}",
        "AWS_CA_BUNDLE": str(ca.certificate),
        "AWS_ENDPOINT_URL": S3,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
    }
    wait_for(lambda: f"{FIRST}:4200" in host.listens(), PATIENCE_S)
    local = f"mongodb://127.0.0.1/?{tls}&tlsAllowInvalidHostnames=true"
    host.output(sys.executable, "-c", MONGO_USER, local, PASSWORD)
    policy = (REPOSITORY / "deploy" / "bucket-policy.json").read_text()
    policy = policy.replace("DRIVES-BUCKET", "drives").replace("LABELS-BUCKET", "labels")
    statements = json.loads(policy.replace("PREFIX", "out"))["Statement"]
    statements.pop()  # moto takes a condition that does not hold for a refusal
    told = json.dumps({"Version": "2012-10-17", "Statement": statements})
    filled = host.output(sys.executable, "-c", FILL_S3, told, folder, S3, ca.certificate)
    host.environment |= json.loads(filled)
    host.output(sys.executable, "-c", "from flows.server.deployments import deploy; deploy()")


@pytest.fixture
def hosts(tmp_path):
    programs = "unshare", "nsenter", "setpriv", "ip", "ss", "cc"
    lacks = [one for one in programs if not shutil.which(one)]
    if os.geteuid() or lacks or not Path("/dev/net/tun").exists():
        pytest.skip(f"needs root, /dev/net/tun and {', '.join(lacks or programs)}")
    addresses = {"first": FIRST, "second": SECOND, "stranger": STRANGER}
    found = [Host(tmp_path / name, address) for name, address in addresses.items()]
    yield Wire(found), *found
    for one in found:
        one.unshare.kill()


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_two_hosts(hosts, tmp_path, monkeypatch):
    wire, first, second, stranger = hosts
    for number in range(SEQUENCES):
        folder = tmp_path / "in" / f"drive{number:03d}"
        write_sequence(folder, tmp_path / "boxes", FRAMES + number % 3)
    with monkeypatch.context() as patch:  # valid by both clocks
        patch.setenv("LD_PRELOAD", clock_behind(3600, tmp_path))
        ca = PrivateCa(tmp_path / "ca")
        certificate, key = ca.issue("server", FIRST)
    serve(first, ca, certificate, key, tmp_path)
    second.environment = first.environment | second.own
    second.environment["LD_PRELOAD"] = clock_behind(BEHIND_S, tmp_path)
    assert abs(time.time() - BEHIND_S - float(second.output("date", "+%s"))) < 5
    for one in first, second:
        one.start("worker", AUTOLABEL, "worker")
        wait_for(lambda one=one: "takes work" in one.log("worker"), PATIENCE_S)

    command = [
        "backfill", "s3://drives/in", "--boxes", "s3://drives/boxes", "--out", "s3://labels/out",
        "--model", MICRO, "--dataset", "hosts", "--shard-minutes", "0.3", "--wait", "--json",
    ]  # fmt: skip
    began = time.monotonic()
    backfill = first.start("backfill", AUTOLABEL, *command)
    wait_for(second.labels, PATIENCE_S)
    assert first.listens() == {f"{FIRST}:{port}" for port in (4200, 9000, 27017)}
    assert second.listens() == stranger.listens() == set()
    attacks = [sys.executable, "-c", ATTACKS, PREFECT, S3, FIRST, ca.certificate]
    refused = json.loads(stranger.output(*attacks))
    assert refused == REFUSED, refused

    wire.cut_off.add(SECOND)
    time.sleep(CUT_S)
    wire.cut_off.clear()
    # Not before it has done a share of the work, or it would hardly have been there.
    known = max(len(second.labeled()), SEQUENCES // 8)
    wait_for(lambda: len(second.labeled()) > known and second.labels(), PATIENCE_S)
    wire.cut_off.add(SECOND)  # what ends says goodbye; a host without power does not
    second.unshare.kill()  # and with it all its processes at once
    assert backfill.wait(3 * PATIENCE_S) == 0, first.log("backfill")
    took_s = time.monotonic() - began
    watched, _, done = first.log("backfill").partition("{")
    done = json.loads("{" + done)
    assert done["remaining"] == 0
    # Either finds it, and a worker that is idle has it again before the backfill looks.
    assert "no sign of life" in watched + first.log("worker")

    copied = [sys.executable, "-c", COPY_OUT, done["run_key"], tmp_path / "out"]
    assert int(first.output(*copied)) == SEQUENCES
    del first.environment["PREFECT_API_URL"]
    command[command.index("s3://labels/out")] = str(tmp_path / "calm")
    calm = ["label", *command[1 : command.index("--dataset")], "--no-dataset", "--json"]
    first.output(AUTOLABEL, *calm)
    assert files_below(tmp_path / "out") == files_below(tmp_path / "calm")
    by = {one.folder.name: len(one.labeled()) for one in (first, second)}
    assert by["second"]
    print(f"{SEQUENCES} sequences in {took_s:.0f} s, {by}, packets lost: {wire.packets}")
