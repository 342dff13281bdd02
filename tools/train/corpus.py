"""Build the corpus: text of packages, by kind, compressed, with every 60th piece held out.

    python -m tools.train.corpus .ship/corpus --packages /tmp/debs

`--packages` holds Debian packages unpacked with `dpkg -x`, one folder each. Writes KIND.xz and KIND.held.xz, documents
separated by a zero byte, and sources.tsv: package, kind, licence, documents, bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from .readers import READERS
from .sources import SOURCES, Source

HELD_OUT = 60  # one document of this many is kept from training
PIECE = 60_000  # characters; longer documents are cut at an empty line
_SKIPPED = re.compile(
    r"/(tests?|testing|_vendor/idna|idlelib|lib2to3/tests|pydoc_data|encodings)/|_pb2|/i18n/|translations"
)


def files_of(source: Source, packages: Path) -> Iterator[Path]:
    """The files of a source, in a fixed shuffled order, so that a limit takes a fair sample."""
    if source.package == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
    elif source.package.startswith("pip:"):
        root = Path(sysconfig.get_paths()["purelib"]) / source.package.removeprefix("pip:")
    else:
        root = packages / source.package
    found = sorted({path for pattern in source.globs for path in root.glob(pattern) if path.is_file()})
    if source.package == "stdlib":
        found = [path for path in found if "site-packages" not in path.parts and "dist-packages" not in path.parts]
    random.Random(1).shuffle(found)
    return (path for path in found if not _SKIPPED.search(str(path)) and path.suffix not in (".dat", ".u8"))


def clean(text: str) -> str:
    """Unix line ends, no trailing blanks, no control characters, at most two empty lines."""
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    text = re.sub(r"[\x00-\x09\x0b-\x1f\ufffd]", "", text)
    return re.sub(r"\n{4,}", "\n\n\n", re.sub(r" +\n", "\n", text)).strip()


def good(text: str) -> bool:
    """English or code: mostly ASCII, no tables of numbers, no endless lines."""
    if len(text) < 400:
        return False
    letters = sum(c.isascii() and (c.isalpha() or c.isspace()) for c in text)
    return (
        letters > 0.6 * len(text)
        and sum(not c.isascii() for c in text) < 0.02 * len(text)
        and len(text) < 400 * (text.count("\n") + 1) + 4000
    )


def pieces(text: str) -> Iterator[str]:
    """A document in parts of at most PIECE characters, cut between paragraphs where that can be."""
    while len(text) > PIECE:
        cut = text.rfind("\n\n", PIECE // 2, PIECE)
        cut = cut if cut > 0 else PIECE
        yield text[:cut]
        text = text[cut:].lstrip("\n")
    yield text


def documents(source: Source, packages: Path, seen: set[bytes]) -> Iterator[str]:
    """The cleaned pieces of one source, without repeats, up to its limit."""
    total = 0
    for path in files_of(source, packages):
        for text in READERS[source.reader](path.read_bytes()):
            for piece in pieces(clean(text)):
                digest = hashlib.sha1(piece.encode()).digest()
                if digest in seen or not good(piece):
                    continue
                seen.add(digest)
                total += len(piece)
                yield piece
                if total > source.limit:
                    return


def build(out: Path, packages: Path) -> None:
    """Collect, split and compress."""
    out.mkdir(parents=True, exist_ok=True)
    texts: dict[str, list[str]] = {}
    seen: set[bytes] = set()
    rows = []
    for source in SOURCES:
        found = list(documents(source, packages, seen))
        rows.append(
            (source.package, source.kind, source.licence, len(found), sum(len(text.encode()) for text in found))
        )
        print(*rows[-1], sep="\t", flush=True)
        texts.setdefault(source.kind, []).extend(found)
    (out / "sources.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    for kind, all_texts in texts.items():
        random.Random(2).shuffle(all_texts)
        for name, chosen in (
            (f"{kind}.held.xz", all_texts[::HELD_OUT]),
            (f"{kind}.xz", [t for i, t in enumerate(all_texts) if i % HELD_OUT]),
        ):
            (out / name).write_bytes(lzma.compress("\0".join(chosen).encode(), preset=5))
            print(name, (out / name).stat().st_size, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, required=True)
    arguments = parser.parse_args()
    build(arguments.out, arguments.packages)
