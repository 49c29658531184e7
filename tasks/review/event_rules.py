"""What a file of decisions may hold: checked once, where one is read.

A checksum says that a file is whole and not who wrote it, and whoever can write into a storage can
write a right one. What an event has besides this is left out.
"""

# ruff: noqa: UP013 (tables of names and rules; classes would be four times as long)

import datetime
import json
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field, FiniteFloat, TypeAdapter
from typing_extensions import TypedDict  # of Python's own pydantic reads those from 3.12 on

from tasks.store.table_rules import sound_mask

Text = Annotated[str, Field(max_length=4096)]
Id = Annotated[str, Field(pattern="^[0-9a-f]{24}$")]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # as the database has them
Number = FiniteFloat | None
Nothing = Annotated[dict[str, Any], Field(max_length=0)]


def _is_time(text: str) -> str:
    day = datetime.timedelta(days=1)
    datetime.datetime.fromisoformat(text) + day  # what is decided later has a later time
    return text


def _with_mask(label: dict[str, Any]) -> dict[str, Any]:
    sound_mask(label["rle"], label["size_hw"])
    return {"decision": "", "changed": "", "sources": []} | label


# As `tasks.dataset.documents` makes it.
_Label = TypedDict("_Label", {
    "id": Id, "label": Text, "model": Text, "rle": str, "area_px": Annotated[Whole, Field(ge=0)],
    "size_hw": Annotated[list[Whole], Field(min_length=2, max_length=2)],
    "box_xyxy_px": Annotated[list[FiniteFloat], Field(min_length=4, max_length=4)],
    "decision": NotRequired[Text], "changed": NotRequired[Text | None],
    "sources": NotRequired[list[Id]], "reviewer": NotRequired[Text],
    "reviewed_at": NotRequired[Text], "confidence": NotRequired[Number],
    "predicted_iou": NotRequired[Number], "stability": NotRequired[Number],
    "object_score": NotRequired[Number], "risk": NotRequired[Number],
    "index": NotRequired[Whole | None], "box_index": NotRequired[Whole | None],
    "undetected_frames": NotRequired[Whole | None], "source": NotRequired[Text | None],
    "object": NotRequired[Text | None], "track": NotRequired[Text | None],
    "reasons": NotRequired[list[Text] | None],
})  # fmt: skip
_Sound = Annotated[_Label, AfterValidator(_with_mask)]
_Status = Literal["", "open", "done"]
_Before = TypedDict("_Before", {
    "decisions": dict[Id, Text], "upserts": list[_Sound], "removed": list[Id], "status": _Status,
    "overrides": NotRequired[dict[Id, _Sound | Nothing]],
})  # fmt: skip
_Frame = TypedDict("_Frame", {
    "sequence_id": Text, "camera": Text, "frame_number": Whole, "timestamp_ns": Whole | None,
    "frame_uri": Text, "frame_address": Text, "frame_etag": Text,
}, total=False)  # fmt: skip
_Prompts = TypedDict("_Prompts", {
    "points_xy_px": list[list[FiniteFloat | bool]], "box_xyxy_px": list[FiniteFloat] | None,
}, total=False)  # fmt: skip
_Change = TypedDict("_Change", {
    "label": Text, "risk": Number, "reasons": list[Text], "changed": Text, "source": Text,
    "model": Text, "prompts": _Prompts,
}, total=False)  # fmt: skip
_Event = TypedDict("_Event", {
    "frame_key": Text, "action": Text, "upserts": list[_Sound], "removed": list[Id],
    "at": NotRequired[Annotated[Text, AfterValidator(_is_time)]], "by": NotRequired[Text],
    "event_id": NotRequired[Text], "run_key": NotRequired[Text], "model": NotRequired[Text],
    "decisions": NotRequired[dict[Id, Text]], "status": NotRequired[_Status],
    "overrides": NotRequired[dict[Id, _Sound | Nothing]], "frame": NotRequired[_Frame],
    "changes": NotRequired[dict[Id, _Change] | dict[Literal["undo", "redo"], Text]],
    "before": NotRequired[_Before | Nothing], "reverts": NotRequired[Text],
    "second_opinion": NotRequired[bool],
})  # fmt: skip
_EVENT = TypeAdapter(_Event)


def checked_event(values: Any) -> dict[str, Any]:
    """Return an event's values, as far as they are known.

    Raises:
        ValueError: one is none that an event has; says which.
        OverflowError: its time is the last that there is.

    """
    # From JSON, as strict types have no lists for tuples otherwise, nor text that is none.
    return dict(_EVENT.validate_json(json.dumps(values), strict=True))
