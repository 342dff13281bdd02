"""`jubako.load` and the model it gives: the whole engine as a library."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..arch.config import Config
from ..arch.weights import Network, load_network
from ..core import Constraint, Request, SamplingParams, ThinkingBudget, whole
from ..errors import MachineError, RequestError
from ..files import ModelFiles, open_model
from ..place.budget import cpu_budget
from ..place.memory import usable_memory
from ..text.messages import plain_messages
from ..text.model_text import load_template, load_tokenizer
from ..text.rules import TokenRule, build_rules
from ..text.template import ChatTemplate
from ..text.tokenizer import Tokenizer
from .depth import Costs
from .draft import DraftOptions
from .draft_head import with_draft_head
from .executor import Executor
from .generate import Generation
from .gpu.device import gpu_executor, may_have_gpu, weight_bytes
from .session import Session

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
SPLITS = ("layers", "halves", "auto")
DEVICES = ("auto", "cuda", "cpu", "reference")
SMALL = 1 << 30  # bytes of weights below which "auto" stays on the CPU: it answers before a GPU's kernels are compiled
CHUNK = 512  # prompt tokens read per pass: enough for each expert to see a matrix, small enough for the caches


def load(
    path: str | Path | Sequence[str | Path],
    device: str = "auto",
    *,
    threads: int | None = None,
    kv_bits: int = 8,
    context: int | None = None,
    compress_ratio: int | None = None,
    sequences: int = 2,
    draft_head: str | None = None,
    ram: int | None = None,
    gpus: Sequence[int] | None = None,
    vram: int | None = None,
    split: str = "layers",
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Open a model and make it ready to run.

    path     a GGUF file, any part of a split set, a directory with a safetensors checkpoint, or a list: the trunk
             first, then override files, a draft-layer file, an n-gram side file
    device   "cuda" (a GPU, AMD's too), "cpu", "reference" (plain float32 torch, slow, the specification), or "auto":
             the GPU if there is one, the model fits and is not tiny, else the CPU
    threads  CPU threads; None: one per physical core this process may use
    kv_bits  8 or 16: how keys and values are cached
    context  tokens a session may hold; None: what the file allows
    compress_ratio  tokens per index block, for files whose converter wrote 0 although they hold an indexer
    sequences  on a GPU, whose memory is laid out at the start: how many there can be at once
    draft_head  block type ("Q4_0") of a copy of the output matrix that the draft layer guesses with: fewer bytes where
             memory is the limit, worse guesses, never another text
    ram      bytes of main memory that the process may take: what does not fit stays on the disk and is read when it is
             needed; None: all that is free if the model is larger, else the file is mapped
    gpus     numbers of the GPUs to use, each for a run of layers; None: all that help. Those that can't be are left out
    vram     bytes of each GPU that may be used; None: what is free
    split    how several GPUs share a model: by "layers", with the same bits as one; by "halves" of every layer on two,
             which decode faster, the text agreeing within rounding; "auto": by halves where it is measured to pay
    progress  told the bytes read and to be read, where weights are read while loading

    Raises FileFormatError, MissingTensorError, MachineError, RequestError.
    """
    if device not in DEVICES:
        raise RequestError(f"device is {device!r}; it can be {', '.join(DEVICES)}")
    if kv_bits not in (8, 16):
        raise RequestError(f"kv_bits is {kv_bits}; it can be 8 or 16")
    if threads is not None and not 1 <= whole("threads", threads) <= 1024:
        raise RequestError(f"threads is {threads}; it must lie between 1 and 1024")
    if ram is not None:
        whole("ram", ram, 1)
    if split not in SPLITS:
        raise RequestError(f"split is {split!r}; it can be {', '.join(SPLITS)}")
    if vram is not None:
        whole("vram", vram, 1)
    if gpus is not None and (not gpus or any(whole("gpus", gpu) < 0 for gpu in gpus)):
        raise RequestError(f"gpus is {list(gpus)}; it must name at least one GPU by its number")
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    files = open_model([Path(p) for p in paths])
    network = load_network(files, compress_ratio)
    if draft_head is not None:
        network = with_draft_head(network, draft_head)
    if device == "auto" and gpus is not None:
        device = "cuda"
    executor = _executor(network, device, threads, kv_bits, context, sequences, ram, gpus, vram, split, progress)
    return Model(network, executor, files, context)


def _executor(
    network: Network,
    device: str,
    threads: int | None,
    kv_bits: int,
    context: int | None,
    sequences: int,
    ram: int | None,
    gpus: Sequence[int] | None,
    vram: int | None,
    split: str,
    progress: Callable[[int, int], None] | None,
) -> Executor:
    if device == "reference":
        from .reference import ReferenceExecutor

        return ReferenceExecutor(network)
    wanted = device == "auto" and may_have_gpu() and weight_bytes(network) >= SMALL
    if device == "cuda" or wanted:
        try:
            return gpu_executor(network, kv_bits, context, sequences, gpus, vram, ram, progress, split)
        except MachineError as error:
            if device == "cuda":
                raise
            log.warning("the CPU is used: %s", error)
    if ram is None and weight_bytes(network) > usable_memory():
        ram = psutil.Process().memory_info().rss + usable_memory()
    if ram is not None:
        from .stored import StoredExecutor

        budget = cpu_budget(network, ram, context, kv_bits, sequences)
        if context is None and budget.context < network.config.context_length:
            log.warning("%.1f GB of memory have room for %d tokens of context", ram / 1e9, budget.context)
        return StoredExecutor(network, threads, kv_bits, budget, progress)
    from .cpu import CpuExecutor

    return CpuExecutor(network, threads=threads, kv_bits=kv_bits)


class Model:
    """A network on a device, with its tokenizer and chat template. Made by `jubako.load`.

    tokenizer and template are None when the file carries no vocabulary; token ids still work then.
    """

    def __init__(self, network: Network, executor: Executor, files: ModelFiles, context: int | None) -> None:
        self.config: Config = network.config
        self.network = network
        self.executor = executor
        self.paths = files.paths
        self.costs = Costs()
        self.context = min(_context(self.config, context), getattr(executor, "context", self.config.context_length))
        self.tokenizer: Tokenizer | None = load_tokenizer(files)
        self.template: ChatTemplate | None = load_template(files, self.tokenizer) if self.tokenizer else None

    def session(self, context: int | None = None) -> Session:
        """An empty sequence with room for `context` tokens (the model's by default)."""
        chunk = getattr(self.executor, "chunk", CHUNK)
        return Session(self.executor, self.context if context is None else _context(self.config, context), chunk)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; spelled special tokens stay text. Raises RequestError without a vocabulary."""
        return self._need_tokenizer().encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a chat (see `text.messages`) by the model's template; options go there (enable_thinking, …)."""
        self._need_tokenizer()
        assert self.template is not None
        return self.template.encode(plain_messages(messages), **options)

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Next-token logits after every token of `ids`, read from an empty context: float32 [len(ids), vocabulary]."""
        ids = _ids(ids)
        if len(ids) > self.context:
            raise RequestError(f"{len(ids)} tokens do not fit in the context of {self.context}")
        session = self.session(context=max(1, len(ids)))
        import torch

        return torch.from_numpy(session.logits(ids))

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        seed: int | None = None,
        stop_ids: Collection[int] | None = None,
        logit_bias: Mapping[int, float] | None = None,
        top_logprobs: int | None = None,
        constraint: Constraint | None = None,
        thinking: ThinkingBudget | None = None,
        drafts: int | None = None,
        draft_floor: float = 0.0,
        fixed_drafts: bool = False,
        session: Session | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Generation:
        """Continue `prompt` (token ids, or plain text). Iterate over the result for tokens; then read its `stats`.

        Ends at `max_tokens`, at the end of the context, or before one of `stop_ids` (None: the vocabulary's end
        tokens; an empty collection: never). With a `session` whose tokens begin the prompt only the rest is read.

        temperature … seed   as in `core.SamplingParams`
        logit_bias           what is added to the logits of some tokens
        top_logprobs         n: `Generation.choices` tells the log probabilities of each token and the n likeliest
        constraint, thinking what the answer must look like, how long it may think (`core`)
        drafts               tokens guessed ahead a step, at most; 0: none; None: as many as pay. Never changes the text
        draft_floor          a guess of less probability ends its step's guesses
        fixed_drafts         always that many `drafts` from the draft layer, whatever it gains

        Raises RequestError for values out of range.
        """
        ids = self.encode(prompt) if isinstance(prompt, str) else _ids(prompt)
        if stop_ids is None:
            stop_ids = self.tokenizer.eos_ids if self.tokenizer else ()
        request = Request(
            id="",
            prompt=tuple(ids),
            params=SamplingParams(
                temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, seed
            ),
            max_tokens=whole("max_tokens", max_tokens, 1),
            stop_ids=frozenset(stop_ids),
            logit_bias=tuple((logit_bias or {}).items()),
            top_logprobs=top_logprobs,
            constraint=constraint,
            thinking=thinking,
            drafts=drafts,
        )
        session = session or self.session()
        if session.executor is not self.executor:
            raise RequestError("the session belongs to another model; make one with this model's session()")
        session.check_fits(ids)
        options = DraftOptions(drafts, fixed_drafts, draft_floor)
        return Generation(session, request, self.rules(request), options, self.costs, self.tokenizer, progress)

    def rules(self, request: Request) -> list[TokenRule]:
        """The rules that the answer to `request` must follow. Raises RequestError where one can't be honoured."""
        if request.constraint is None and request.thinking is None:
            return []
        return build_rules(request, self._need_tokenizer(), self.config.vocabulary)

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError("this model file carries no vocabulary; give token ids instead of text")
        return self.tokenizer


def _ids(ids: Sequence[int]) -> list[int]:
    """Token ids of any integer type, numpy's and torch's too, as Python's. A fraction is no id."""
    if isinstance(ids, (str, bytes)):
        raise RequestError("token ids were expected, not text; encode() makes them")
    try:
        return [index(id) for id in ids]
    except (TypeError, ValueError) as error:
        raise RequestError(f"token ids must be a sequence of integers: {error}") from None


def _context(config: Config, context: int | None) -> int:
    if context is None:
        return config.context_length
    context = whole("context", context)
    if not 1 <= context <= config.context_length:
        raise RequestError(f"context is {context}; this model takes 1 to {config.context_length}")
    return context
