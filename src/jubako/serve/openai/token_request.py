"""The bodies of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .chat_request import Message
from .fields import Body, TokenId


class TokenizeRequest(Body):
    """A text or a chat; of several the last of these that is given counts."""

    content: str | None = None
    prompt: str | None = Field(None, description="Another name of content.")
    messages: Annotated[list[Message], Field(min_length=1, max_length=20_000)] | None = None
    parse_special: bool | None = Field(None, description="Take spelled special tokens as such.")
    with_pieces: bool | None = Field(None, description="Give the text of each token beside its id.")


class DetokenizeRequest(Body):
    tokens: Annotated[list[TokenId], Field(max_length=1_000_000)]
