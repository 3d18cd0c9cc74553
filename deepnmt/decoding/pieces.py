"""Texts as ids to translate, long ones in several pieces, and the results as hypotheses of the texts."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import fmean
from typing import TypeVar

import torch

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import EOS, PAD
from deepnmt.decoding.alignment import Alignment, align_words, attention
from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.glossary import Rendering
from deepnmt.decoding.lines import Warn
from deepnmt.decoding.placeholders import lacks_placeholders, restore_placeholders
from deepnmt.decoding.search import Found, penalty_table
from deepnmt.decoding.splitting import join_translations, split_long
from deepnmt.decoding.term_search import Term
from deepnmt.errors import InputError
from deepnmt.model.transformer import Transformer

T = TypeVar("T")


@dataclass(frozen=True)
class Hypothesis:
    """A translation with the `score` used for ranking (for MBR, the expected utility), the model's `log_prob`, and the
    `alignment` if requested."""

    text: str
    score: float
    log_prob: float
    pieces: list[str]
    alignment: Alignment | None = None


@dataclass
class Piece:
    """A text, or one of the pieces of a long one."""

    text: int  # of which text
    source: str
    sources: list[list[int]]  # ids for each model, with the end if it expects one
    prefix: list[int]
    is_first: bool
    renderings: list[Rendering] = field(default_factory=list)  # if one is missing: all that it needs
    terms: list[Term] = field(default_factory=list)  # the same for a second search
    symbols: list[int] = field(default_factory=list)  # of the best hypothesis
    hypotheses: list[Hypothesis] = field(default_factory=list)
    is_done: bool = False

    @property
    def length(self) -> int:
        return max(map(len, self.sources))


def cut_texts(
    texts: Sequence[str],
    prefixes: Sequence[str] | None,
    tokenizers: Sequence[TokenizerPair],
    max_positions: int,
    max_source_length: int,
    warn: Warn,
) -> list[Piece]:
    """The texts to translate as ids; nothing for empty ones. Only the first piece of a text has its prefix."""
    target = tokenizers[0].target
    if prefixes is not None and len(prefixes) != len(texts):
        raise InputError(f"{len(texts)} texts but {len(prefixes)} prefixes")
    forced = [target.opening()] * len(texts) if prefixes is None else target.encode_batch(prefixes)
    least = [bool(pair.source.begin) for pair in tokenizers]  # the length of an empty text
    limit, most = min(max_source_length, max_positions - 1), max_positions - 1

    def encoded(parts: Sequence[str]) -> list[tuple[str, tuple[list[int], ...]]]:
        """Each part with its ids for each model."""
        ids = zip(*(pair.source.encode_batch(parts) for pair in tokenizers), strict=True)
        return list(zip(parts, ids, strict=True))

    pieces: list[Piece] = []
    for number, (text, whole) in enumerate(encoded(texts)):
        parts, longest = [(text, whole)], max(map(len, whole))
        if longest > limit:
            tag, rest = tokenizers[0].source.split_tag(text)
            split = split_long(rest, limit - bool(tag), lambda part: max(map(len, encoded([part])[0][1])))
            parts = encoded([f"{tag} {part}" if tag else part for part in split])
            # Only a part that cannot be cut any further may still be too long for learned positions.
            lost = any(len(ids) > most for _, every in parts for ids in every)
            message = f"has {longest:,} subwords, more than max_source_length = {limit}: "
            message += f"translated in {len(parts)} pieces" + lost * ", of which the longest was cut short"
            warn(number, message)
        for part, every in parts:
            if all(len(ids) > opening for ids, opening in zip(every, least, strict=True)):
                sources = [[*ids[:most], *pair.source.ending] for ids, pair in zip(every, tokenizers, strict=True)]
                is_first = not pieces or pieces[-1].text != number
                pieces.append(Piece(number, part, sources, forced[number] if is_first else target.opening(), is_first))
    return pieces


def batched(items: Iterable[T], size: Callable[[T], float], budget: float, most: float = math.inf) -> Iterator[list[T]]:
    """Neighbours, at most `most`, whose largest size times their number is within the budget."""
    batch: list[T] = []
    largest = 0.0
    for item in items:
        largest = max(largest, size(item))
        if batch and (len(batch) == most or (len(batch) + 1) * largest > budget):
            yield batch
            batch, largest = [], size(item)
        batch.append(item)
    if batch:
        yield batch


def padded(sources: Sequence[list[int]], pad_id: int = PAD, device: torch.device | str = "cpu") -> torch.Tensor:
    width = max(map(len, sources))
    return torch.tensor([ids + [pad_id] * (width - len(ids)) for ids in sources], device=device)


def keep_found(
    batch: Sequence[Piece],
    found: Sequence[Sequence[Found]],
    config: TranslationConfig,
    model: Transformer,
    tokenizers: TokenizerPair,
) -> None:
    """Decode the hypotheses of these pieces, aligned by `model` if requested or if placeholders are missing."""
    target = tokenizers.target
    wanted: list[tuple[Piece, int, list[int]]] = []
    for piece, candidates in zip(batch, found, strict=True):
        piece.hypotheses = []
        for rank, best in enumerate(candidates):
            names = [target.piece(symbol) for symbol in best.symbols]
            piece.hypotheses.append(Hypothesis(target.decode(best.symbols), best.score, best.log_prob, names))
            if config.alignments or (config.keep_placeholders and _lacks(piece, rank)):
                wanted.append((piece, rank, best.symbols))
    for start in range(0, len(wanted), len(batch)):
        rows = wanted[start : start + len(batch)]
        source = padded([piece.sources[0] for piece, _, _ in rows], device=model.output_weight.device)
        weights = attention(model, source, [symbols for _, _, symbols in rows], EOS)
        for (piece, rank, symbols), matrix in zip(rows, weights, strict=True):
            text = piece.hypotheses[rank].text
            ids = piece.sources[0][: len(piece.sources[0]) - len(tokenizers.source.ending)]
            alignment = align_words(matrix, ids, symbols, (tokenizers.source, target))
            if config.keep_placeholders and _lacks(piece, rank):
                text, alignment = restore_placeholders(piece.source, text, alignment)
            kept = alignment if config.alignments else None
            piece.hypotheses[rank] = replace(piece.hypotheses[rank], text=text, alignment=kept)
    for piece in batch:
        piece.is_done = True


def _lacks(piece: Piece, rank: int) -> bool:
    return lacks_placeholders(piece.source, piece.hypotheses[rank].text)


def join_pieces(
    count: int, pieces: Sequence[Piece], language: str, config: TranslationConfig, warn: Warn
) -> list[list[Hypothesis]]:
    """The hypotheses of each of `count` texts from those of its pieces: the best of each, the second best of each, …"""
    results = [[Hypothesis("", 0.0, 0.0, [])] for _ in range(count)]
    for number, group in groupby(pieces, key=lambda piece: piece.text):
        of_text = [piece.hypotheses for piece in group]
        if not all(of_text):
            warn(number, "has no translation that the settings allow; it is left empty")
            continue
        found = of_text[0]
        if len(of_text) > 1:
            found = [_joined(parts, language, config) for parts in zip(*of_text, strict=False)]
        found.sort(key=lambda hypothesis: -hypothesis.score)
        results[number] = found if config.sampling and not config.mbr else different(found)
    return results


def _joined(parts: Sequence[Hypothesis], language: str, config: TranslationConfig) -> Hypothesis:
    log_prob = sum(part.log_prob for part in parts)
    tokens = [token for part in parts for token in part.pieces]
    # Each piece has its own end.
    penalty = penalty_table(config, len(tokens) + len(parts))[-1].item()
    alignments = [part.alignment for part in parts if part.alignment is not None]
    alignment = Alignment.joined(alignments) if alignments else None
    text = join_translations([part.text for part in parts], language)
    score = fmean(part.score for part in parts) if config.mbr else log_prob / penalty
    return Hypothesis(text, score, log_prob, tokens, alignment)


def different(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """The first hypothesis of each text: different subwords can spell the same text."""
    texts: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        texts.setdefault(hypothesis.text, hypothesis)
    return list(texts.values())
