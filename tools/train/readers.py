"""From files of packages to plain text. Every reader takes the raw bytes and gives the documents in them."""

from __future__ import annotations

import gzip
import html as html_module
import re
import zlib

_BLOCKS = re.compile(r"</?(p|div|li|ul|ol|h\d|pre|tr|br|dd|dt|table|blockquote)\b[^>]*>", re.I)
_CLUTTER = re.compile(r"<(script|style|head|nav)\b.*?</\1>|<!--.*?-->", re.S | re.I)
_TAG = re.compile(r"<[^>]+>")
_WML = re.compile(r'^\s*(?:message|story|description|note|text|name)\s*=\s*_?\s*"((?:[^"]|"")*)"', re.M)
_RFC_BREAK = re.compile(r"\n*[^\n]*\[Page \d+\]\n\f?\n?(?:RFC \d+[^\n]*\n)?\n*")


def plain(raw: bytes) -> list[str]:
    """Text as it stands."""
    return [raw.decode("utf-8", "replace")]


def gzipped(raw: bytes) -> list[str]:
    """Text that may be compressed; dictionaries come in pieces of some pages."""
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", "replace")
    return [text] if len(text) < 400_000 else [text[at : at + 20_000] for at in range(0, len(text), 20_000)]


def rfc(raw: bytes) -> list[str]:
    """An RFC without its page breaks."""
    return [_RFC_BREAK.sub("\n\n", text) for text in gzipped(raw)]


def html(raw: bytes) -> list[str]:
    """The text of a page: one line per block, preformatted parts kept."""
    text = _CLUTTER.sub("", raw.decode("utf-8", "replace"))
    pieces = re.split(r"(<pre\b.*?</pre>)", text, flags=re.S | re.I)
    for at, piece in enumerate(pieces):
        if not piece.lower().startswith("<pre"):
            piece = re.sub(r"\s+", " ", piece)
        pieces[at] = html_module.unescape(_TAG.sub("", _BLOCKS.sub("\n", piece)))
    lines = (line.rstrip() for line in "".join(pieces).split("\n"))
    return [re.sub(r"\n{3,}", "\n\n", "\n".join(lines))]


def wml(raw: bytes) -> list[str]:
    """What is said and told in a game's scenario, in order."""
    spoken = [
        re.sub(r"<[^>]+>", "", text.replace('""', '"')).strip() for text in _WML.findall(raw.decode("utf-8", "replace"))
    ]
    return ["\n\n".join(text for text in spoken if len(text) > 30)]


def r_strings(raw: bytes) -> list[str]:
    """The long character vectors of R's lazy-load database: objects are zlib streams after a four-byte length."""
    documents, at = [], 0
    while (at := raw.find(b"\x78", at)) >= 0:
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(raw[at:])
            at = len(raw) - len(unpacker.unused_data)
        except zlib.error:
            at += 1
            continue
        lines = [
            data[m.end() : m.end() + int.from_bytes(m[1], "big")]
            for m in re.finditer(rb"\x00\x04\x00\x09(....)", data, re.S)
        ]
        if len(lines) > 1000:
            documents.append(b"\n".join(lines).decode("utf-8", "replace"))
    return documents


READERS = {name: globals()[name] for name in ("plain", "gzipped", "rfc", "html", "wml", "r_strings")}
