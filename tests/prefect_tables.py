"""A database with Prefect's tables, made once for all tests: making it takes ten CPU seconds."""

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = "AUTOLABEL_TESTS_FOLDER"  # names one that all processes of these tests share
MAKE = (
    "import sys; from pathlib import Path; from flows.server.postgres import Postgres; "
    "Postgres(Path(sys.argv[1])).leave()"
)


def put_tables(folder: Path) -> Path:
    """Have a database in a folder: a copy of what two commands left that made it at once."""
    made = Path(os.environ[FOLDER]) / "tables"
    made.mkdir(exist_ok=True)
    with (made / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "migrated").is_file():
            # As of `make` with nothing but Python beside it.
            bare = os.environ | {"PATH": "/nowhere"}
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(
                    lambda command: subprocess.run(command, check=True, env=bare),
                    2 * [[sys.executable, "-c", MAKE, str(made)]],
                ))  # fmt: skip
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / "data").exists():
        return folder
    kept = [made / name for name in ("data", "password", "migrated")]
    # With its owner: PostgreSQL may run as another user.
    subprocess.run(["/bin/cp", "-a", *kept, folder], check=True)
    return folder
