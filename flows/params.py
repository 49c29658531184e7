"""Parameters of runs and backfills: all configuration of the command line and Prefect's form."""

from datetime import UTC, datetime, timedelta
from string import Template
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tasks.pipeline.params import LabelParams

__all__ = ["BackfillParams", "LabelParams"]


def _moment(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a date such as 2026-11-20 or 2026-11-20T18:00"
        ) from error
    return text


Moment = Annotated[str, AfterValidator(_moment)]


def _without_secrets(address: str) -> str:
    if not (Template(address).is_valid() and Template(address).get_identifiers()):
        raise ValueError(
            "an address is a secret: put it, or what is secret in it, into a variable of the "
            "workers' environment, and name that, such as '$SLACK_URL'"
        )
    return address


class BackfillParams(BaseModel):
    """What to label again or for the first time, and how to spread it over workers."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    label: LabelParams
    since: Moment | None = Field(
        default=None,
        description="Only what is from then on, such as 2026-11-20 or 2026-11-20T18:00.",
    )
    until: Moment | None = Field(
        default=None, description="Only what is from before then; a date includes that day."
    )
    sequences: str = Field(
        default="*",
        min_length=1,
        description="Only sequences whose names match; @FILE has patterns, one per line.",
    )
    shard_minutes: float = Field(
        default=10.0, gt=0, le=24 * 60, description="Length of a shard in minutes."
    )
    retry_quarantined: bool = Field(
        default=False, description="Try sequences again that were given up."
    )

    notify: tuple[Annotated[str, AfterValidator(_without_secrets)], ...] = Field(
        default=(),
        description="Addresses of apprise that hear of a bad end: '$SLACK_URL', a variable of the "
        "workers' environment.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        first, end = self.first_ns, self.end_ns
        if first is not None and end is not None and first >= end:
            raise ValueError(f"since {self.since} is not before until {self.until}")
        return self

    @property
    def first_ns(self) -> int | None:
        """First instant that counts, UTC unless the text names an offset."""
        return nanoseconds(datetime.fromisoformat(self.since)) if self.since else None

    @property
    def end_ns(self) -> int | None:
        """First instant that no longer counts."""
        if not self.until:
            return None
        end = datetime.fromisoformat(self.until)
        whole_day = len(self.until) <= len("2026-11-20")
        return nanoseconds(end + timedelta(days=1) if whole_day else end)


def nanoseconds(moment: datetime) -> int:
    """Nanoseconds since 1970 of a moment, in UTC where it names no zone."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp()) * 1_000_000_000
