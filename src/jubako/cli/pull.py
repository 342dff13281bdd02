"""`jubako pull`: fetch a published model, with a word on whether it fits before anything is moved."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from ..errors import MachineError, RequestError
from ..place.known import Known
from ..place.pull import check_room, list_files, source_of
from ..place.pull import pull as fetch
from ..place.sizes import size_text as size
from . import program
from .boxes import plain_table


def pull(name: str, folder: Path, revision: str | None, draft: bool, dry_run: bool, anyway: bool) -> None:
    """List, check the disk, fetch. Raises MachineError for a published model that this machine can't run."""
    source = source_of(name, draft)
    if not folder.is_dir():
        raise RequestError(f"{folder} is not a folder; make it first, or name another with --to")
    console = Console(stderr=True)
    if source.known:
        _say_whether_it_fits(console, source.known, folder, anyway)
    with console.status(f"Asking for the files of {source.repository} …"):
        files = list_files(source, revision)
    table = plain_table("file", "size")
    for file in files:
        table.add_row(Text(file.name), size(file.size))
    console.print(table)
    left, total = check_room(files, folder), sum(file.size for file in files)
    console.print(f"{size(total)} in all, {size(left)} to fetch into {folder}", highlight=False, markup=False)
    if dry_run:
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        tasks = {file.name: bar.add_task(_short(file.name), total=file.size) for file in files}
        paths = fetch(files, folder, lambda file, count: bar.advance(tasks[file], count))
    done = f"Done, checksums right. Start it with: ./start {_words(paths)}"
    console.print(done, highlight=False, markup=False, soft_wrap=True)


def _say_whether_it_fits(console: Console, known: Known, folder: Path, anyway: bool) -> None:
    from ..measure.like import like
    from ..place.census import take_census
    from ..place.check import judge
    from ..place.fit import make_plan
    from ..place.probe import known_or_nominal
    from .plan import verdict_line

    census = take_census(like(known))
    judgement = judge(make_plan(census, known_or_nominal(folder)))
    console.print(Text(f"{known.name}: "), verdict_line(judgement), end="\n", sep="")
    if judgement.verdict == "does not fit" and not anyway:
        raise MachineError(
            f"{known.name} does not fit this machine; {program.name} check lists what does, --anyway fetches it"
        )


def _words(paths: list[Path]) -> str:
    """-m for the trunk's first file and the draft layer's: a split set is named by any of its parts."""
    trunk = [path for path in paths if not path.name.startswith("mtp-")]
    draft = [path for path in paths if path.name.startswith("mtp-")]
    return " ".join(f"-m {quote(str(path))}" for path in (*trunk[:1], *draft))


def _short(name: str, width: int = 34) -> str:
    """The end of a long name tells the parts of a set apart."""
    return name if len(name) <= width else "…" + name[1 - width :]
