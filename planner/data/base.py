"""What all data classes share: frozen, no unknown keys, the unit under each field."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Data(BaseModel):
    """A frozen record; change it with `model_copy(update=...)`, never in place."""

    model_config = ConfigDict(frozen=True, extra="forbid")
