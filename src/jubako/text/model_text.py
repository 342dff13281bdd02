"""The text side of a model's files: its tokenizer and its chat template. Needs the headers only."""

from __future__ import annotations

from ..errors import FileFormatError
from ..files import ModelFiles
from .template import ChatTemplate
from .tokenizer import Tokenizer


def load_tokenizer(files: ModelFiles) -> Tokenizer | None:
    """The tokenizer; None where the files carry no vocabulary."""
    if files.kind == "safetensors":
        directory = files.paths[0].parent
        return Tokenizer.from_huggingface(directory) if (directory / "tokenizer.json").exists() else None
    return Tokenizer.from_metadata(files.metadata) if "tokenizer.ggml.tokens" in files.metadata else None


def load_template(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template; plain ChatML where the files have none."""
    source = files.metadata.get("tokenizer.chat_template")
    beside = files.paths[0].parent / "chat_template.jinja"
    if files.kind == "safetensors" and beside.exists():
        source = beside.read_text(encoding="utf-8")
    if source is not None and not isinstance(source, str):
        raise FileFormatError(f"tokenizer.chat_template is a {type(source).__name__}; it must be a string")
    return ChatTemplate(source, tokenizer)
