# ruff: noqa: E501 - a table
"""Where the training text comes from: packages of Debian and PyPI and the Python installation, with their licences."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

Kind = Literal["prose", "code", "docs"]


@dataclass(frozen=True)
class Source:
    """Files of one package. `limit` in bytes of extracted text; `reader` names a function of `readers`.

    package: a Debian package, or "pip:NAME" for one that lies in this Python's site-packages, or "stdlib".
    """

    package: str
    kind: Kind
    licence: str
    globs: tuple[str, ...]
    reader: str
    limit: int = 1 << 30


_SITE = "pip:"
SOURCES = [
    Source("r-cran-janeaustenr", "prose", "public domain", ("**/*.rdb",), "r_strings"),
    Source("r-cran-tokenizers", "prose", "MIT; Moby-Dick is public domain", ("**/data/*.rdb",), "r_strings"),
    Source("anarchism", "prose", "GFDL-1.1+ or GPL-2+", ("**/html/*.html",), "html"),
    Source("wesnoth-campaigns", "prose", "GPL-2+", ("**/campaigns/**/*.cfg",), "wml"),
    Source("fortunes", "prose", "BSD-3 and public domain", ("usr/share/games/fortunes/*",), "plain"),
    Source("fortunes-min", "prose", "BSD-3 and public domain", ("usr/share/games/fortunes/*",), "plain"),
    Source("debian-handbook", "prose", "GPL-2+ or CC-BY-SA-3.0", ("**/html/en-US/*.html",), "html"),
    Source("debian-history", "prose", "GPL-2+", ("**/*.en.html", "**/*.en.txt"), "html"),
    Source("dict-devil", "prose", "public domain", ("**/*.dict.dz",), "gzipped"),
    Source("dict-jargon", "prose", "public domain", ("**/*.dict.dz",), "gzipped"),
    Source("dict-foldoc", "prose", "GFDL-1.2+", ("**/*.dict.dz",), "gzipped"),
    Source("dict-gcide", "prose", "GPL-3+; Webster 1913 is public domain", ("**/*.dict.dz",), "gzipped", 8_000_000),
    Source("stdlib", "code", "PSF-2.0", ("**/*.py",), "plain", 14_000_000),
    Source(_SITE + "torch", "code", "BSD-3", ("**/*.py",), "plain", 9_000_000),
    Source(_SITE + "numpy", "code", "BSD-3", ("**/*.py",), "plain", 5_000_000),
    Source(_SITE + "sympy", "code", "BSD-3", ("**/*.py",), "plain", 5_000_000),
    Source(_SITE + "networkx", "code", "BSD-3", ("**/*.py",), "plain", 4_000_000),
    Source(_SITE + "pip", "code", "MIT", ("**/*.py",), "plain"),
    Source(_SITE + "rich", "code", "MIT", ("**/*.py",), "plain"),
    Source(_SITE + "jinja2", "code", "BSD-3", ("**/*.py",), "plain"),
    Source(_SITE + "typer", "code", "MIT", ("**/*.py",), "plain"),
    Source(_SITE + "psutil", "code", "BSD-3", ("**/*.py",), "plain"),
    Source("python3.11-doc", "docs", "PSF-2.0", ("**/_sources/**/*.txt",), "plain"),
    Source("linux-doc-6.1", "docs", "GPL-2", ("**/Documentation/**/*.rst.gz", "**/Documentation/**/*.rst"), "gzipped", 10_000_000),
    Source("doc-rfc-std", "docs", "IETF Trust (verbatim copies)", ("**/*.txt.gz",), "rfc"),
    Source("doc-rfc-fyi-bcp", "docs", "IETF Trust (verbatim copies)", ("**/*.txt.gz",), "rfc", 6_000_000),
    Source("doc-rfc-informational", "docs", "IETF Trust (verbatim copies)", ("**/*.txt.gz",), "rfc", 12_000_000),
    Source("git-doc", "docs", "GPL-2", ("**/*.txt",), "plain", 3_000_000),
    Source("perl-doc", "docs", "Artistic or GPL-1+", ("**/*.pod",), "plain", 5_000_000),
    Source("postgresql-doc-15", "docs", "PostgreSQL", ("**/html/*.html",), "html", 5_000_000),
    Source("debian-policy", "docs", "GPL-2+", ("**/policy.txt.gz", "**/policy.txt"), "gzipped"),
    Source("debian-reference-en", "docs", "GPL-2+", ("**/*.en.html",), "html"),
    Source("developers-reference", "docs", "GPL-2+", ("**/*.html",), "html", 600_000),
    Source("installation-guide-amd64", "docs", "GPL-2+", ("**/en/*.html",), "html", 1_500_000),
    Source("aptitude-doc-en", "docs", "GPL-2+", ("**/html/en/*.html",), "html"),
    Source("vim-runtime", "docs", "Vim", ("**/doc/*.txt",), "plain", 4_000_000),
]  # fmt: skip

if __name__ == "__main__":
    for source in SOURCES:
        sys.stdout.write(f"{source.package}\t{source.kind}\t{source.licence}\n")
