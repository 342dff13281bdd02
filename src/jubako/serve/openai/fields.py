"""Field types that requests share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_ID = 2**31 - 2


def _integral(value: Any) -> Any:
    """1.0 is the integer 1 in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_integral)  # comes last: pydantic would misname the bounds in the page otherwise
TokenId = Annotated[int, Field(ge=0, le=MOST_ID), Whole]  # the page is given the vocabulary's size instead
Number = Annotated[float, Field(allow_inf_nan=False)]


class Body(BaseModel):
    """A request. Types are taken strictly, unknown fields are accepted and ignored, null means left out."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class Sampling(Body):
    """How tokens are chosen. Defaults suit this model; the original's default temperature is 1."""

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1), Whole] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1), Whole] | None = None
    logit_bias: Annotated[dict[str, Annotated[Number, Field(ge=-100, le=100)]], Field(max_length=4096)] | None = Field(
        None, description="Token id to a number added to its logit; -100 bars a token."
    )


class StreamOptions(Body):
    """include_usage: a last chunk with the usage of the whole request."""

    include_usage: bool | None = None
