"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .chat_request import ResponseFormat
from .fields import Sampling, StreamOptions, TokenId, Whole

TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=1_000_000)]


class CompletionRequest(Sampling):
    """Text continued as it stands, without the chat template."""

    model: str | None = Field(None, description="Any name; the loaded model answers.")
    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=128)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, max_length=128)]
    )
    max_tokens: Annotated[int, Field(ge=1), Whole] | None = Field(None, description="16 when left out.")
    n: Annotated[int, Field(ge=1, le=32), Whole] | None = None
    best_of: Annotated[int, Field(ge=1, le=32), Whole] | None = Field(None, description="Only the same as n.")
    echo: bool | None = Field(None, description="Begin the text with the prompt.")
    suffix: str | None = Field(None, description="Not supported: this model has no way to fill in.")
    stop: str | Annotated[list[str], Field(max_length=64)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=20), Whole] | None = None
    response_format: ResponseFormat | None = None
    parse_special: bool | None = Field(None, description="Take spelled special tokens in the prompt as such.")
    return_progress: bool | None = Field(None, description="While streaming, tell how much of the prompt is read.")
