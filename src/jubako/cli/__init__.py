"""The command line: one file per command, each imported when it is called."""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from ..core import SamplingParams
from ..errors import JubakoError, MachineError, RequestError
from . import planning, program

if TYPE_CHECKING:
    from ..engine.model import Model

app = typer.Typer(
    help="Jubako runs Qwen3.8-Flash-Next on hardware you own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

PLAIN = str.maketrans("█░■·…≈–—×µ", "#.*-.~--xu")  # for terminals that have only ASCII

COMMANDS = ("serve", "run", "chat", "inspect", "synth", "bench", "probe", "plan", "check", "pull")

Files = Annotated[
    list[Path] | None,
    typer.Option("--model", "-m", metavar="FILE", help="Model file; again for overrides, a draft layer, a side file."),
]
Device = Annotated[str, typer.Option(help="auto, cuda, cpu, or reference (plain float32 torch, slow).")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; by default one per physical core.")]
KvBits = Annotated[int, typer.Option(help="Bits of a cached key or value: 8 or 16.")]
Ram = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory to use, as 24G; what does not fit stays on disk.")
]
Gpus = Annotated[str | None, typer.Option(metavar="0,1", help="GPUs to use, by number; by default all that help.")]
Vram = Annotated[str | None, typer.Option(metavar="SIZE", help="Video memory to use at most, of each GPU: 12G.")]
Split = Annotated[str, typer.Option(help="How GPUs share it: layers, halves (of each, on two), or auto: the faster.")]
Context = Annotated[int | None, typer.Option(help="Tokens of context to make room for.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token.")]
TopK = Annotated[int, typer.Option(help="Only the K likeliest tokens; 0: all.")]
TopP = Annotated[float, typer.Option(help="Only the likeliest tokens that make up this probability.")]
MinP = Annotated[float, typer.Option(help="Only tokens at least this likely, relative to the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]
Repetition = Annotated[float, typer.Option("--repetition-penalty", help="Above 1: tokens seen before become rarer.")]
Frequency = Annotated[float, typer.Option("--frequency-penalty", help="Subtracted for each time a token was written.")]
Presence = Annotated[float, typer.Option("--presence-penalty", help="Subtracted once a token was written.")]
Drafts = Annotated[
    int | None, typer.Option(min=0, max=15, help="Tokens guessed ahead a step, at most; else what pays.")
]
DraftFloor = Annotated[float, typer.Option(min=0, max=1, help="A guess less likely than that ends a step's guesses.")]
Think = Annotated[bool, typer.Option("--think/--no-think", help="Let the model think before it answers.")]


@app.command(epilog='Example: jubako run -m model.gguf "Why is the sky blue?"')
def run(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; read from standard input when left out.")] = None,
    model: Files = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it stands, without the chat template.")
    ] = False,
    think: Think = False,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Repetition = 1.0,
    frequency_penalty: Frequency = 0.0,
    presence_penalty: Presence = 0.0,
    seed: Seed = None,
    drafts: Drafts = None,
    draft_floor: DraftFloor = 0.0,
    device: Device = "auto",
    threads: Threads = None,
    kv_bits: KvBits = 8,
    context: Context = None,
    ram: Ram = None,
    gpus: Gpus = None,
    vram: Vram = None,
    split: Split = "layers",
) -> None:
    """Answer one prompt, streaming; then say how fast."""
    from ..engine.draft import DraftOptions
    from .run import run as command

    if prompt is None:
        if sys.stdin.isatty():
            raise RequestError('no prompt: give one as an argument (jubako run "...") or on standard input')
        prompt = sys.stdin.read()
    if not prompt:
        raise RequestError("the prompt is empty")
    params = SamplingParams(
        temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, seed
    )
    loaded = _load(model, device, threads, kv_bits, context, ram, gpus, vram, split)
    command(prompt, loaded, params, max_tokens, raw, think, system, DraftOptions(drafts, floor=draft_floor))


@app.command(epilog="Example: jubako chat -m model.gguf --think")
def chat(
    model: Files = None,
    think: Think = False,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: MaxTokens = 2048,
    temperature: Temperature = 0.7,
    top_k: TopK = 20,
    top_p: TopP = 0.95,
    min_p: MinP = 0.0,
    repetition_penalty: Repetition = 1.0,
    frequency_penalty: Frequency = 0.0,
    presence_penalty: Presence = 0.0,
    seed: Seed = None,
    drafts: Drafts = None,
    draft_floor: DraftFloor = 0.0,
    device: Device = "auto",
    threads: Threads = None,
    kv_bits: KvBits = 8,
    context: Context = None,
    ram: Ram = None,
    gpus: Gpus = None,
    vram: Vram = None,
    split: Split = "layers",
) -> None:
    """Talk with the model in the terminal. /help there lists what can be typed."""
    from ..engine.draft import DraftOptions
    from .chat import Chat

    params = SamplingParams(
        temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, seed
    )
    loaded = _load(model, device, threads, kv_bits, context, ram, gpus, vram, split)
    Chat(loaded, params, max_tokens, think, system, DraftOptions(drafts, floor=draft_floor)).loop()


@app.command(epilog="Example: jubako serve model.gguf --host 0.0.0.0 --api-key KEY")
def serve(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Model file, then overrides, draft layer, side files.")
    ] = None,
    model: Files = None,
    host: Annotated[str, typer.Option(help="Address; one that others can reach needs a key.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="By default 8080 or the next free one.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Key that clients must send; again for several.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File with keys; JUBAKO_API_KEY adds some.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="Host name to answer to, beside this machine's.")] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="Site whose pages may ask: https://a.b.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model for clients; by default the file's.")] = None,
    device: Device = "auto",
    threads: Threads = None,
    kv_bits: KvBits = 8,
    context: Context = None,
    ram: Ram = None,
    gpus: Gpus = None,
    vram: Vram = None,
    split: Split = "layers",
    sequences: Annotated[int, typer.Option(min=1, max=16, help="Answers at a time.")] = 8,
    drafts: Annotated[int | None, typer.Option(min=0, max=15, help="Most drafts a step; else what pays.")] = None,
    prefix_gb: Annotated[float | None, typer.Option(min=0, max=1e6, help="Memory for what was read, in GB.")] = None,
    sessions: Annotated[Path | None, typer.Option(help="Folder that keeps what was read over a restart.")] = None,
    sessions_gb: Annotated[float, typer.Option(min=0, max=1e6, help="Room there, in GB; 0: nothing is kept.")] = 16.0,
    queue: Annotated[int, typer.Option(min=0, help="Requests that may wait.")] = 256,
    max_body: Annotated[int, typer.Option(min=1, max=2048, help="Largest request, in MiB.")] = 32,
    grace: Annotated[int, typer.Option(min=0, help="Seconds that answers may take to end when stopped.")] = 60,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; one JSON object a line.")] = "info",
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts and answers to the log.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve the page and the interfaces of OpenAI and Anthropic, until Ctrl-C."""
    from .serve import serve as command

    command(
        [*(files or []), *(model or [])],
        host,
        port,
        api_key or [],
        api_key_file,
        allow_host or [],
        cors_origin or [],
        name,
        device,
        threads,
        kv_bits,
        context,
        _bytes("--ram", ram),
        _numbers(gpus),
        _bytes("--vram", vram),
        split,
        sequences,
        drafts,
        prefix_gb,
        sessions,
        sessions_gb,
        queue,
        max_body,
        grace,
        log_level,
        log_prompts,
        open_page,
    )


@app.command(epilog="Example: jubako inspect model-00001-of-00003.gguf mtp.gguf")
def inspect(
    files: Annotated[list[Path], typer.Argument(help="Model file, then overrides, draft layer, side files.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a model file holds and what a token reads of it, from its header alone."""
    from .inspect import inspect as command

    command(files, json)


@app.command(epilog="Example: jubako synth random.gguf --layers 4 --experts 64 --types gate_up=IQ3_XXS,down=IQ4_NL")
def synth(
    out: Annotated[Path, typer.Argument(help="File to write.")],
    layers: Annotated[int, typer.Option(help="Layers; every fourth is attention.")] = 48,
    experts: Annotated[int, typer.Option(help="Experts per layer.")] = 512,
    vocab: Annotated[int, typer.Option(help="Vocabulary.")] = 248_320,
    context: Annotated[int, typer.Option(help="Context the file announces.")] = 262_144,
    ngram_rows: Annotated[int, typer.Option(help="Rows of the n-gram table, about.")] = 100_000,
    types: Annotated[
        str, typer.Option(help="Block types: gate_up=…,down=…,dense=…, or a tensor name pattern such as blk.2.*=….")
    ] = "",
    draft: Annotated[bool, typer.Option("--draft", help="With a draft layer.")] = False,
    routing: Annotated[str, typer.Option(help="flat, or skewed: some experts are chosen more often.")] = "flat",
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what the file would hold.")] = False,
) -> None:
    """Write a random file of real widths, to measure speed and memory without the real weights."""
    from .synth import synth as command

    if routing not in ("flat", "skewed"):
        raise RequestError(f"--routing is {routing!r}; it can be flat or skewed")
    choice: Literal["flat", "skewed"] = "flat" if routing == "flat" else "skewed"
    command(out, layers, experts, vocab, context, ngram_rows, types, draft, choice, seed, dry_run)


@app.command(epilog="Example: jubako bench model.gguf --depths 0,4096,64K --json bench.json")
def bench(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Model file, then overrides, draft layer, side files.")
    ] = None,
    depths: Annotated[str, typer.Option(help="Tokens of context before the measured ones; K is 1024.")] = "0",
    prompt: Annotated[int, typer.Option(help="Tokens of the measured prompt.")] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens decoded.")] = 64,
    repeat: Annotated[int, typer.Option(help="Runs at each depth; medians are shown.")] = 3,
    device: Device = "auto",
    threads: Threads = None,
    kv_bits: KvBits = 8,
    ram: Ram = None,
    gpus: Gpus = None,
    vram: Vram = None,
    fill: Annotated[str, typer.Option(help="How a context is filled: read like a prompt, or random.")] = "random",
    isa: Annotated[str | None, typer.Option(help="Instruction set, avx2 or avx512; else the best.")] = None,
    synth: Annotated[bool, typer.Option("--synth", help="On a GPU: a random network of full size, no file.")] = False,
    types: Annotated[str, typer.Option(help="With --synth: block types, as `jubako synth` takes them.")] = "",
    profile: Annotated[Path | None, typer.Option(help="On a GPU: write a trace that a browser opens.")] = None,
    drafts: Annotated[
        int | None, typer.Option(min=1, max=15, help="Also measure so many drafts, on real text.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of the texts that drafts are measured on.")] = 0.7,
    json: Annotated[Path | None, typer.Option(help="Write all figures as JSON; - for standard output.")] = None,
) -> None:
    """Measure prompt and decode speed against the memory bandwidth of this machine."""
    from .bench import bench as command
    from .bench import parse_depths

    for option, out in (("--json", json), ("--profile", profile)):
        if out is not None and not out.parent.is_dir():
            raise RequestError(f"{option} is {out}, and there is no folder {out.parent}; make it first")
    if device == "cuda":
        from .bench_gpu import bench_gpu

        cards = (_numbers(gpus), _bytes("--vram", vram), _bytes("--ram", ram))
        bench_gpu(
            files or [], synth, cards, parse_depths(depths), prompt, repeat, kv_bits, profile, json, types, drafts,
            temperature,
        )  # fmt: skip
        return
    for option, given in (("--synth", synth), ("--types", types), ("--profile", profile)):
        if given:
            raise RequestError(f"{option} is for a GPU; it needs --device cuda")
    if not files:
        raise RequestError("bench takes a model file")
    command(
        files,
        depths,
        prompt,
        tokens,
        repeat,
        device,
        threads,
        kv_bits,
        _bytes("--ram", ram),
        _numbers(gpus),
        _bytes("--vram", vram),
        fill,
        isa,
        drafts,
        temperature,
        json,
    )


planning.register(app)


def _load(
    files: list[Path] | None,
    device: str,
    threads: int | None,
    kv_bits: int,
    context: int | None,
    ram: str | None,
    gpus: str | None,
    vram: str | None,
    split: str,
) -> Model:
    from .. import _cpu
    from .open import open_with_status

    _cpu.explain_cut_files()
    limits = (_bytes("--ram", ram), _numbers(gpus), _bytes("--vram", vram), split)
    return open_with_status(files, device, threads, kv_bits, context, *limits)


def _bytes(option: str, text: str | None) -> int | None:
    from ..place.sizes import parse_size

    return None if text is None else parse_size(text, option)


def _numbers(gpus: str | None) -> tuple[int, ...] | None:
    """The GPUs of "0,1"."""
    if gpus is None:
        return None
    parts = [part.strip() for part in gpus.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise RequestError(f"--gpus is {gpus!r}; it must be numbers of GPUs such as 0,1")
    return tuple(int(part) for part in parts)


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 an error that was explained, 2 wrong usage, 130 interrupted."""
    _prepare_streams()
    try:
        app(args=arguments, prog_name=program.name)
    except JubakoError as error:
        _explain(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that does not exist
        _explain(error)
    except MemoryError:
        _explain(MachineError("the system refuses more memory; allow less with --ram, or ask for a smaller --context"))


def _prepare_streams() -> None:
    """Terminals without UTF-8 or width and input that is none must not end a command; nor must closed streams."""
    codecs.register_error("jubako", _in_ascii)
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if mode == "r" else "jubako")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """What stands for the characters that a stream can't write."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(c if c.isascii() else "?" for c in error.object[error.start : error.end].translate(PLAIN)), error.end


def _explain(error: Exception) -> NoReturn:
    """Say it in one line; a file's own text in it must not speak to the terminal."""
    print(f"jubako: {''.join(c if c.isprintable() else '?' for c in str(error))}", file=sys.stderr)
    sys.exit(1)
