"""Which files the App may show: those of datasets and of our own folders, no others.

FiftyOne's server reads any file of its user for whoever asks for `/media?filepath=`.
"""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.cache import cache_folder

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

DIRECTORIES_VARIABLE = "AUTOLABEL_MEDIA_DIRS"
_KINDS = ("image/", "video/")


class MediaGate:
    """Answers "not found" for files that no page of the App has any business with.

    Args:
        app: FiftyOne's application.
        folders: whose pictures and videos may be shown, wherever links in them lead inside.
        recorded: says whether a dataset has a sample of that file, with the content it has now;
            None where no dataset has one.

    """

    def __init__(
        self, app: ASGIApp, folders: list[Path], recorded: Callable[[str], bool | None]
    ) -> None:
        self._app, self._recorded = app, recorded
        self._folders = [os.path.join(os.path.realpath(folder), "") for folder in folders]  # noqa: PTH118

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on unless it is for a file that is not to be shown."""
        if scope["type"] == "http" and scope["path"].rstrip("/") == "/media":
            import anyio
            from starlette.datastructures import QueryParams
            from starlette.responses import PlainTextResponse

            path = QueryParams(scope["query_string"]).get("filepath", "")
            if path and not await anyio.to_thread.run_sync(self.may_show, path):
                await PlainTextResponse("Not found", 404)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def may_show(self, path: str) -> bool:
        """Whether the App may show a file; asked anew each time, because files change."""
        if "\0" in path:
            return False
        real = os.path.realpath(path)
        kind, _ = mimetypes.guess_type(real)
        if not (kind or "").startswith(_KINDS):  # also where a link of that name leads elsewhere
            return False
        recorded = self._recorded(path)
        return real.startswith(tuple(self._folders)) if recorded is None else recorded


def media_folders() -> list[Path]:
    """Folders whose pictures may be shown: frames of ours, masks, what the user names."""
    named = os.environ.get(DIRECTORIES_VARIABLE, "").split(os.pathsep)
    masks = os.environ.get("AUTOLABEL_MASK_DIR", "")
    chosen = [Path(one).expanduser() for one in (*named, masks) if one]
    return [cache_folder() / "frames", *chosen]


def has_sample(path: str) -> bool | None:
    """Whether a dataset has a sample of that very file as it is now; None where none has any.

    A file that was rewritten is not shown, or the old labels would be seen on the new picture.
    """
    from fiftyone.core.odm import get_db_conn

    from tasks.review.aside import VERSION, difference

    database: Any = get_db_conn()
    names = database.datasets.distinct("sample_collection_name")
    found = [database[name].find_one({"filepath": path}, VERSION) for name in names if name]
    samples = [one for one in found if one]
    return any(not difference(one) for one in samples) if samples else None
