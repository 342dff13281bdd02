"""The network as a page of calls, token by token or a whole prompt at once, and its draft layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...errors import RequestError
from ..config import Config
from ..network import Attention, Gdn, HyperMix, Layer, Network
from ..ngram import ngram_row_ids
from .attention import AttentionCache, attention_prepare, index_select, index_update, sparse_attention
from .basics import Weight, embed, float32, linear, linear_many, rms_norm
from .gdn import GdnState, gdn
from .hyper import hyper_combine, hyper_mix
from .moe import experts, route
from .ngram import ngram_inject

CHUNK = 512  # tokens per pass of `Reference.logits`, to bound memory


class State:
    """What the network remembers of one sequence: `position` tokens so far, the last few ids, one cache per layer."""

    def __init__(self, network: Network) -> None:
        config = network.config
        self.position = 0
        self.history: list[int] = []
        self.layers = [_mixer_state(config, layer) for layer in network.layers]
        past = config.ngram.conv_past if config.ngram else 0
        self.ngram = torch.zeros(past, config.streams * config.hidden)
        self.draft = _mixer_state(config, network.draft.layer) if network.draft else None
        self.draft_position = 0


def _mixer_state(config: Config, layer: Layer) -> GdnState | AttentionCache:
    if isinstance(layer.mixer, Gdn):
        return GdnState.empty(config)
    return AttentionCache(config, layer.mixer.ratio)


def head(
    mix: HyperMix, output: Weight, streams: torch.Tensor, rows: Sequence[int] | None = None, eps: float = 1e-6
) -> torch.Tensor:
    """Logits [len(rows), vocabulary] of the wanted rows of streams [T, S, H]; None is all of them."""
    wanted = streams if rows is None else streams[list(rows)]
    return linear(output, hyper_mix(wanted, mix, eps)[0])


class Reference:
    """The network in float32. Weights are decoded when they are needed, so large files work too, slowly."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.config = network.config

    def new_state(self) -> State:
        """The state before the first token."""
        return State(self.network)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits after every token of a fresh sequence: float32 [len(ids), vocabulary]."""
        state = self.new_state()
        return torch.cat([self.forward(ids[start : start + CHUNK], state) for start in range(0, len(ids), CHUNK)])

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], state: State, rows: Sequence[int] | None = None) -> torch.Tensor:
        """Read tokens at the end of `state`; logits [len(rows), vocabulary] after the wanted ones (None: all)."""
        return self.head(self.residual(ids, state), rows)

    @torch.inference_mode()
    def residual(self, ids: Sequence[int], state: State) -> torch.Tensor:
        """Read tokens at the end of `state`; the streams [T, S, H] after the last layer, before the head's mixer."""
        config = self.config
        tokens = self._checked(ids)
        streams = embed(self.network.embed, tokens)[:, None, :].repeat(1, config.streams, 1)
        for layer, memory in zip(self.network.layers, state.layers, strict=True):
            if layer.ngram is not None:
                rows = ngram_row_ids(config, tokens, state.history)
                embedding = embed(layer.ngram.table, rows.reshape(-1)).view(len(tokens), -1)
                ngram_inject(layer.ngram, streams, embedding, state.ngram, config.eps)
            self._layer(layer, streams, memory, state.position)
        state.position += len(tokens)
        if config.ngram:
            state.history = [*state.history, *tokens.tolist()][-(config.ngram.size - 1) :]
        return streams

    @torch.inference_mode()
    def head(self, streams: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
        """Next-token logits from the streams that `residual` gave."""
        return head(self.network.head_mix, self.network.output, streams, rows, self.config.eps)

    @torch.inference_mode()
    def draft(self, ids: Sequence[int], streams: torch.Tensor, state: State) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass of the draft layer: logits [T, vocabulary] of the tokens after `ids`, and the layer's own streams.

        streams [T, S, H] are those after the token before each of `ids`: the trunk's, or in a later draft step those
        that this method gave. Each pair stands at the position of the token before, as the trunk counted it.
        """
        network, config, draft = self.network, self.config, self.network.draft
        if draft is None:
            raise RequestError("these files hold no draft layer")
        assert state.draft is not None
        tokens, count, hidden = streams.shape
        token = embed(draft.embed or network.embed, self._checked(ids))
        token = linear(draft.fc_embedding, rms_norm(token, float32(draft.norm_embedding), config.eps))
        wide = rms_norm(streams.reshape(tokens, count * hidden), float32(draft.norm_hidden), config.eps)
        joined = linear(draft.fc_hidden, wide.view(tokens * count, hidden)).view(streams.shape)
        streams = joined + token[:, None, :]
        self._layer(draft.layer, streams, state.draft, state.draft_position)
        state.draft_position += tokens
        return head(draft.head_mix, draft.output or network.output, streams, None, config.eps), streams

    @torch.inference_mode()
    def draft_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Draft logits [len(ids)-1, vocabulary]: row p guesses token p+2 from the trunk after p and token p+1."""
        state = self.new_state()
        return self.draft(ids[1:], self.residual(ids, state)[:-1], state)[0]

    def _layer(self, layer: Layer, streams: torch.Tensor, memory: GdnState | AttentionCache, position: int) -> None:
        """One layer on streams [T, S, H], in place."""
        config = self.config
        mixed, inject = hyper_mix(streams, layer.hc_attn, config.eps)
        assert inject is not None
        if isinstance(memory, GdnState):
            out = self._gdn(layer.mixer, mixed, memory)
        else:
            out = self._attention(layer.mixer, mixed, memory, position)
        hyper_combine(streams, inject, out)

        mixed, inject = hyper_mix(streams, layer.hc_ffn, config.eps)
        assert inject is not None
        router_logits, shared = linear_many([layer.experts.router, layer.experts.shared_router], mixed)
        ids, weights = route(router_logits, config.experts_used)
        hyper_combine(streams, inject, experts(layer.experts, mixed, ids, weights, shared[:, 0]))

    def _gdn(self, weights: Gdn | Attention, x: torch.Tensor, memory: GdnState) -> torch.Tensor:
        assert isinstance(weights, Gdn)
        qkv, z, beta, alpha = linear_many([weights.qkv, weights.gate, weights.beta, weights.alpha], x)
        return linear(weights.out, gdn(weights, qkv, z, beta, alpha, memory, self.config.eps))

    def _attention(
        self, weights: Gdn | Attention, x: torch.Tensor, cache: AttentionCache, position: int
    ) -> torch.Tensor:
        assert isinstance(weights, Attention)
        q, k, v = linear_many([weights.q, weights.k, weights.v], x)
        queries, gate = attention_prepare(weights, q, k, v, cache, position)
        blocks = counts = None
        if weights.indexer is not None:
            index_q, index_k = linear_many([weights.indexer.q, weights.indexer.k], x)
            index_update(weights.indexer, index_k, cache, position)
            blocks, counts = index_select(weights.indexer, index_q, cache, position)
        return linear(weights.output, sparse_attention(queries, gate, cache, blocks, counts, position))

    def _checked(self, ids: Sequence[int]) -> np.ndarray:
        array = np.asarray(ids, dtype=np.int64).reshape(-1)
        bad = array[(array < 0) | (array >= self.config.vocabulary)]
        if len(bad):
            raise RequestError(f"token id {bad[0]} is outside the vocabulary of {self.config.vocabulary}")
        return array
