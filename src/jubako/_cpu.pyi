"""The CPU kernels of Jubako. Types only: made from the built module with nanobind.stubgen, array shapes left out."""

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

def isa() -> str:
    """The instruction set level in use: avx2 or avx512."""

def isa_supported(name: str) -> bool:
    """Whether this processor runs the kernels of that level."""

def set_isa(name: str) -> None:
    """
    Use the kernels of that level. Results do not depend on it, only speed does.
    """

def threads() -> int:
    """Threads the kernels run on, the caller's included."""

def set_threads(count: int) -> None:
    """Run the kernels on that many threads."""

def default_threads() -> int:
    """The physical cores this process may use."""

class Weight:
    """
    A matrix, or a stack of expert matrices, in the file's own blocks. Keeps its array alive.
    """

    def __init__(self, bytes: NDArray[np.uint8], type: int, scale: NDArray[np.float32] | None = None) -> None:
        """
        bytes: uint8 [(experts,) rows, row_bytes], strided in all but the last dimension; type: ggml's number of the
        block type; scale: float32 [1] or [experts], multiplies the products (NVFP4).
        """

    @property
    def type(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def experts(self) -> int: ...

def linear(weight: Weight, x: NDArray[np.float32], expert: int = 0) -> NDArray[np.float32]:
    """
    x [T, K] -> [T, rows]. K may be less than the weight's cols by a padding: zeros there.
    """

def linear_many(weights: Sequence[Weight], x: NDArray[np.float32], expert: int = 0) -> list[NDArray[np.float32]]:
    """linear with each of the weights; x is quantised once."""

def experts(
    gate: Weight,
    up: Weight,
    down: Weight,
    x: NDArray[np.float32],
    ids: NDArray[np.int32],
    route_weights: NDArray[np.float32],
    shared_router: Weight | None = None,
    shared_gate: Weight | None = None,
    shared_up: Weight | None = None,
    shared_down: Weight | None = None,
) -> NDArray[np.float32]:
    """
    x [T, H], ids int32 [T, k] in order of rank (negative: that expert is not here and adds nothing), route_weights
    [T, k] -> [T, H]: the sum of route_weight · down(silu(gate·x) · (up·x)) by rank, then the shared expert times
    sigmoid(router·x).
    """

def decode_rows(weight: Weight, rows: NDArray[np.int64], expert: int = 0) -> NDArray[np.float32]:
    """rows int64 [n] -> float32 [n, cols]: the decoded weights."""

class Rope:
    """Cosines and sines of all positions, shared by the layers."""

    def __init__(self, frequencies: NDArray[np.float32], magnitude: float, positions: int) -> None: ...

def page_tokens(ratio: int) -> int:
    """Tokens that a page must hold, or a multiple of it, for blocks of `ratio` tokens."""

class AttentionPages:
    """Keys, values and pooled index keys of one attention layer and many sequences."""

    def __init__(
        self, count: int, page: int, kv_heads: int, dim: int, bits: int, ratio: int = 0, index_dim: int = 0
    ) -> None: ...
    @property
    def cache(self) -> NDArray[np.uint8]:
        """uint8 [count, bytes], a view: keys and values of each page."""

    @property
    def pooled(self) -> NDArray[np.uint8]:
        """uint8 [count, bytes], a view: pooled index keys of each page."""

class PageTable:
    """The pages of one sequence, in the order of its tokens."""

    def __init__(self, limit: int) -> None: ...
    def __len__(self) -> int: ...
    def set(self, place: int, page: int) -> None:
        """Let a page be the one of that place; the place after the last adds one."""

    def truncate(self, count: int) -> None:
        """Keep the first `count` pages."""

class AttentionState:
    """
    Keys and values of one attention layer and one sequence, and its indexer's keys.
    """

    @overload
    def __init__(self, pages: AttentionPages, table: PageTable) -> None: ...
    @overload
    def __init__(
        self, context: int, kv_heads: int, dim: int, bits: int, ratio: int = 0, index_dim: int = 0
    ) -> None: ...
    @property
    def length(self) -> int:
        """Tokens in the cache."""

    def reset(self) -> None:
        """Forget everything; give the memory back if it is not shared."""

    @property
    def raw_keys(self) -> NDArray[np.float32]:
        """float32 [ring, index_dim], a view: the raw index key of token p at p mod ring."""

    def resume(self, length: int) -> None:
        """Take the first `length` tokens of the pages as read; raw_keys must be as they were then."""

    def truncate(self, length: int) -> None:
        """
        Forget all tokens from `length` on, in constant time. With an indexer at most 32 tokens can be taken back.
        """

    def key(self, cell: int) -> NDArray[np.float32]:
        """Key of a token as the kernels see it: float32 [kv_heads, dim]."""

    def value(self, cell: int) -> NDArray[np.float32]:
        """Value of a token as the kernels see it: float32 [kv_heads, dim]."""

    def pooled(self, block: int) -> NDArray[np.float32]:
        """Pooled index key of a complete block: float32 [index_dim]."""

class Attention:
    """Norms and sizes of an attention layer."""

    def __init__(
        self,
        q_norm: NDArray[np.float32],
        k_norm: NDArray[np.float32],
        heads: int,
        kv_heads: int,
        eps: float,
        rope: Rope,
    ) -> None: ...
    def prepare(
        self,
        q: NDArray[np.float32],
        k: NDArray[np.float32],
        v: NDArray[np.float32],
        state: AttentionState,
        position: int,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """See ops: attention_prepare."""

def sparse_attention(
    q: NDArray[np.float32],
    gate: NDArray[np.float32],
    state: AttentionState,
    blocks: NDArray[np.int32] | None,
    counts: NDArray[np.int32] | None,
    position: int,
) -> NDArray[np.float32]:
    """See ops: sparse_attention."""

class GdnState:
    """
    What a gated delta net remembers: past convolution columns and a matrix for each value head.
    """

    @property
    def position(self) -> int:
        """Tokens seen."""

    @position.setter
    def position(self, arg: int, /) -> None: ...
    @property
    def pending(self) -> int:
        """
        The last tokens, those of a revocable call, that `memory` does not hold yet.
        """

    def reset(self) -> None:
        """Forget everything."""

    def keep(self, count: int) -> None:
        """
        Forget the pending tokens but the first `count`, in constant time.
        """

    def settle(self) -> None:
        """Bring `memory` up to the last token."""

    @property
    def conv(self) -> NDArray[np.float32]:
        """
        float32 [kernel - 1 + 16, channels], a view: the raw column of token p at p mod their number. The last
        kernel - 1 matter.
        """

    @property
    def memory(self) -> NDArray[np.float32]:
        """
        float32 [heads, dim of k, dim of v], a view, without the pending tokens.
        """

class Gdn:
    """The small weights of a gated delta net."""

    def __init__(
        self,
        conv: NDArray[np.float32],
        dt_bias: NDArray[np.float32],
        a: NDArray[np.float32],
        norm: NDArray[np.float32],
        key_heads: int,
        eps: float,
    ) -> None: ...
    def new_state(self) -> GdnState:
        """The state before the first token."""

    def run(
        self,
        qkv: NDArray[np.float32],
        z: NDArray[np.float32],
        beta: NDArray[np.float32],
        alpha: NDArray[np.float32],
        state: GdnState,
        revocable: bool = False,
    ) -> NDArray[np.float32]:
        """See ops: gdn."""

class HyperMix:
    """A hyper-connection's mixer."""

    def __init__(
        self, norm: NDArray[np.float32], down: Weight, up: Weight, inject: Weight | None, streams: int, eps: float
    ) -> None: ...
    def mix(self, streams: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """See ops: hyper_mix."""

def rms_norm(x: NDArray[np.float32], gamma: NDArray[np.float32], eps: float) -> NDArray[np.float32]:
    """See ops: rms_norm."""

def hyper_combine(streams: NDArray[np.float32], inject: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """See ops: hyper_combine."""

class Indexer:
    """Norms and sizes of an attention layer's indexer."""

    def __init__(
        self,
        q_norm: NDArray[np.float32],
        k_norm: NDArray[np.float32],
        heads: int,
        ratio: int,
        budget: int,
        eps: float,
        rope: Rope,
    ) -> None: ...
    def update(self, raw: NDArray[np.float32], state: AttentionState, position: int) -> None:
        """See ops: index_update."""

    def select(
        self, q: NDArray[np.float32], state: AttentionState, position: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """See ops: index_select."""

class NgramState:
    """Past columns of the n-gram convolution."""

    @property
    def position(self) -> int:
        """Tokens seen."""

    @position.setter
    def position(self, arg: int, /) -> None: ...
    def reset(self) -> None:
        """Forget everything."""

    def truncate(self, length: int) -> None:
        """Forget the last tokens, 16 at most, in constant time."""

    @property
    def past(self) -> NDArray[np.float32]:
        """
        float32 [(kernel - 1) * dilation + 16, streams * hidden], a view: the normed column of token p at p mod their
        number.
        """

class Ngram:
    """Weights of the n-gram embedding's injection."""

    def __init__(
        self,
        key: Weight,
        value: Weight,
        norm_key: NDArray[np.float32],
        norm_query: NDArray[np.float32],
        norm_conv: NDArray[np.float32],
        conv: NDArray[np.float32],
        streams: int,
        dilation: int,
        eps: float,
    ) -> None: ...
    def new_state(self) -> NgramState:
        """The state before the first token."""

    def inject(self, streams: NDArray[np.float32], embedding: NDArray[np.float32], state: NgramState) -> None:
        """See ops: ngram_inject."""

def route(logits: NDArray[np.float32], k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """See ops: route."""

def argmax(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """
    Index of the largest value of each row; the lowest one on ties: int64 [rows].
    """

def pause(seconds: float) -> None:
    """Wait as a thread does that others on its core hardly notice."""

def read_all(bytes: NDArray[np.uint8]) -> int:
    """
    Read an array of bytes (whole blocks of 256) on all threads, for its time; the exclusive or of its 64-bit words.
    """

class ReadError(Exception):
    """What a file refused to give: its name, the place, and why."""

class Reader:
    """Reads files past the page cache, in parallel, on threads of its own."""

    def __init__(self, paths: Sequence[str], threads: int = 16) -> None: ...
    def read(self, file: int, offset: int, bytes: int) -> NDArray[np.uint8]:
        """Bytes of a file, by its number: uint8 [bytes]. Raises ReadError."""

    @property
    def direct(self) -> bool:
        """Whether the file system reads without the page cache."""

    @property
    def bytes_read(self) -> int: ...

class RowReads:
    """Rows on their way."""

    def take(self, row_bytes: int) -> NDArray[np.uint8]:
        """Wait for them: uint8 [rows, row_bytes]. Raises ReadError."""

class RowTable:
    """A matrix that stays in its file."""

    def __init__(self, reader: Reader, file: int, offset: int, row_bytes: int, rows: int) -> None: ...
    @property
    def row_bytes(self) -> int: ...
    def begin(self, ids: NDArray[np.int64]) -> RowReads:
        """Begin to read rows ids int64 [n]."""

class RowServer:
    """Reads rows that a GPU asks for through memory which both see (csrc/row_server.h)."""

    def __init__(
        self, table: RowTable, words: NDArray[np.uint32], ids: NDArray[np.int64], rows: NDArray[np.uint8]
    ) -> None:
        """words uint32 [64], ids int64 [n] of the rows asked for, rows uint8 [n, row_bytes] for what is read."""

    def begin(self) -> None:
        """Requests may come from now on: its thread spins."""

    def end(self) -> None:
        """None will come until the next `begin`."""

    @property
    def error(self) -> str:
        """Why the last read failed; empty if none did."""

class ExpertStore:
    """Experts in main memory, read from the file as they are needed (store.h)."""

    def __init__(
        self,
        reader: Reader,
        layers: Sequence[Sequence[tuple[int, int, int, int]]],
        experts: int,
        frames: Sequence[int],
    ) -> None:
        """
        layers: for gate, up and down (file, offset of expert 0, bytes from one expert to the next, bytes of one);
        frames: how many for layers of each shape (`store_shapes`), or none: room for all.
        """

    def load(self, layer: int) -> None:
        """Read all experts of a layer. Raises ReadError."""

    def step(self) -> None:
        """A step of the network begins."""

    def hold(self, layer: int, ids: NDArray[np.int32]) -> int:
        """
        Read those of experts int32 [n], each once, that are absent; none goes until `release`. How many, from the first
        on: fewer than all when no frame is left, but at least one. Raises ReadError.
        """

    def release(self, layer: int, ids: NDArray[np.int32]) -> None:
        """Held experts may go."""

    @property
    def error(self) -> str:
        """Why the last read failed; empty if none did."""

    def expect(self, layer: int, ids: NDArray[np.int32], sure: bool = False) -> None:
        """
        Experts int32 [n] that a layer may ask for next, the likeliest first: read when nothing else is, and unless sure
        only in place of experts used less.
        """

    def experts(
        self,
        layer: int,
        gate: Weight,
        up: Weight,
        down: Weight,
        x: NDArray[np.float32],
        ids: NDArray[np.int32],
        route_weights: NDArray[np.float32],
        shared_router: Weight,
        shared_gate: Weight,
        shared_up: Weight,
        shared_down: Weight,
        meanwhile: Callable[[], None] | None = None,
    ) -> NDArray[np.float32]:
        """
        As `experts`, of a layer of the store; the weights' bytes are not read. meanwhile(): called while experts are
        read.
        """

    @property
    def whole(self) -> bool:
        """Whether there is room for all experts."""

    @property
    def addresses(self) -> NDArray[np.uint64]:
        """
        uint64 [layers, experts, 3], a view: where gate, up and down of each expert begin, 0 where it is absent.
        """

    def part(self, layer: int, part: int, bytes: int) -> NDArray[np.uint8]:
        """
        Bytes of a part of a layer, from expert 0 on, in a store with room for all: uint8 [bytes], a view.
        """

    def regions(self) -> list[tuple[int, int]]:
        """(address, bytes) of the memory laid out."""

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """
        Experts asked for, of those read when asked for; read because expected, of those never asked for.
        """

class ExpertLayer:
    """Where a layer's experts lie in main memory. Keeps its arrays alive."""

    def __init__(
        self,
        types: Sequence[int],
        size: int,
        hidden: int,
        down_cols: int,
        addresses: NDArray[np.uint64],
        scales: NDArray[np.float32] | None = None,
    ) -> None:
        """
        types: ggml's numbers of gate's and up's [size, hidden] and down's [hidden, down_cols] block types; addresses
        uint64 [experts, 3] of their blocks, rows one after the other, 0 where an expert is not in memory; may change at
        any time.
        """

class ExpertThreads:
    """Answers a GPU that asks for experts through memory which both see (csrc/expert_threads.h)."""

    def __init__(
        self,
        words: NDArray[np.uint32],
        ids: NDArray[np.int32],
        x: NDArray[np.float32],
        rows: NDArray[np.float32],
        layers: Sequence[ExpertLayer],
    ) -> None:
        """words uint32 [112], ids int32 [tokens, chosen], x float32 [tokens, hidden], rows float32 [uses, hidden]."""

    def set_source(self, source: ExpertSource | None) -> None:
        """What brings experts into memory whose addresses are 0."""

    def begin(self) -> None:
        """Requests may come from now on: threads spin."""

    def end(self) -> None:
        """None will come until the next `begin`."""

    def close(self) -> None:
        """End the thread that watches the bell."""

    @property
    def requests(self) -> int:
        """Requests answered."""

    @property
    def experts(self) -> int:
        """Experts computed, once a request each."""

    @property
    def named(self) -> int:
        """Experts that guesses named, whose weights were called into caches."""

    @property
    def seconds(self) -> float:
        """Seconds spent on answers."""

class ExpertSource:
    """Brings experts into main memory."""

class StoreSource(ExpertSource):
    """Lets a store bring what `ExpertThreads` are asked for."""

    def __init__(
        self,
        store: ExpertStore,
        routers: Sequence[Weight] = (),
        chosen: int = 0,
        slots: NDArray[np.int32] | None = None,
    ) -> None:
        """
        routers [experts, hidden] of all layers, and how many experts a token chooses: to read ahead what the next layer
        may ask for; slots: int32 [layers, experts], negative where the GPU does not have an expert itself, as it
        changes.
        """

def explain_cut_files() -> None:
    """Let a mapped file whose bytes are gone end the process with a line that names it, exit code 1."""

def store_shapes(layers: Sequence[Sequence[tuple[int, int, int, int]]]) -> tuple[list[int], list[int]]:
    """The shape of each layer's experts, as a number, and the bytes of a frame of each shape."""
