"""Raw text in, raw text out: models, their tokenisers and a search joined into one object."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import BOS, EOS, PAD, UNK
from deepnmt.decoding.alignment import Alignment, align_words, attention
from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.continuous import CannotFuseError, ContinuousSearches
from deepnmt.decoding.ensemble import Ensemble, EnsembleState
from deepnmt.decoding.fused import can_fuse
from deepnmt.decoding.penalties import penalty_table
from deepnmt.decoding.placeholders import lacks_placeholders, restore_placeholders
from deepnmt.decoding.precision import PreparedModel, prepare
from deepnmt.decoding.rules import Rules, prefix_table
from deepnmt.decoding.sampling import Draw, Greedy, generate, random_numbers
from deepnmt.decoding.search import Found, Shrinking, beam_search
from deepnmt.decoding.splitting import join_translations, split_long
from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig
from deepnmt.model.storage import load_meta, load_model
from deepnmt.model.transformer import Transformer
from deepnmt.settings import from_table

Warn = Callable[[int, str], None]  # the number of the text, from zero, and what to know about it
BATCH_TOKENS = {"cpu": 3072, "cuda": 24_576}
BATCH_SENTENCES = {"cpu": 64, "cuda": 1024}


@dataclass(frozen=True)
class Hypothesis:
    """A translation. `score` ranks it, `log_prob` is the model's; `alignment` is there when it was asked for."""

    text: str
    score: float
    log_prob: float
    pieces: list[str]
    alignment: Alignment | None = None


@dataclass
class _Piece:
    """A text, or one of the pieces of a long one."""

    text: int  # of which text
    source: str
    sources: list[list[int]]  # ids with the end, for each model
    prefix: list[int]
    is_first: bool
    hypotheses: list[Hypothesis] = field(default_factory=list)
    is_done: bool = False

    @property
    def length(self) -> int:
        return max(map(len, self.sources))


class Translator:
    """Translates with one model or an ensemble; `device` is cpu or cuda, `precision` fp32, bf16, fp16 or int8."""

    def __init__(
        self,
        model: str | Path | Sequence[str | Path],
        device: str | None = "cpu",
        precision: str = "fp32",
    ) -> None:
        folders = [Path(folder) for folder in ([model] if isinstance(model, str | Path) else model)]
        if not folders:
            raise InputError("a translator needs at least one model")
        self.device = torch.device(choose_device(device))
        for folder in folders:
            load_meta(folder)
        self.tokenizers = [TokenizerPair.load(folder) for folder in folders]
        for folder, pair in zip(folders[1:], self.tokenizers[1:], strict=True):
            if pair.target.pieces != self.tokenizers[0].target.pieces:
                raise InputError(
                    f"{folder} and {folders[0]} have different target vocabularies: no ensemble of the two"
                )
        self.models = [self._load(folder, pair) for folder, pair in zip(folders, self.tokenizers, strict=True)]
        self.prepared = [prepare(model, precision) for model in self.models]
        self.defaults: dict[str, Any] = load_meta(folders[0]).get("decoding", {})
        self.continuous = _search_in_slots(self.device, self.prepared)

    @classmethod
    def of(cls, model: Transformer, tokenizers: TokenizerPair, precision: str | None = None) -> "Translator":
        """A translator around a model as it is, where it is, for looking at one that is still being trained.

        With a precision it is prepared for good, and for speed, as a model that is loaded.
        """
        translator = cls.__new__(cls)
        translator.device = model.output_weight.device
        translator.tokenizers, translator.models = [tokenizers], [model]
        translator.prepared = [PreparedModel(model) if precision is None else prepare(model, precision)]
        translator.continuous, translator.defaults = None, {}
        if precision is not None:
            translator.continuous = _search_in_slots(translator.device, translator.prepared)
        return translator

    def _load(self, folder: Path, pair: TokenizerPair) -> Transformer:
        model = load_model(folder, self.device)
        check_vocabularies(folder, model.config, pair)
        return model

    def for_languages(self, source: str | None, target: str | None) -> "Translator":
        """The same for one pair of a model's languages; None: the one it has by default."""
        if source is None and target is None:
            return self
        other = copy(self)
        other.tokenizers = [pair.for_languages(source, target) for pair in self.tokenizers]
        return other

    def translate(self, texts: Sequence[str], **settings: Any) -> list[str]:
        """The best translation of each text; `settings` are those of `translate_nbest`."""
        return [hypotheses[0].text for hypotheses in self.translate_nbest(texts, **{**settings, "nbest": 1})]

    def translate_nbest(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        warn: Warn | None = None,
        done: Callable[[int], None] | None = None,
        **settings: Any,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each text, best first, never none; all different, unless they are drawn.

        `settings` are the fields of `TranslationConfig`; `prefixes` are what the translations must begin with;
        `done` is called with the number of texts of each batch. A text of spaces only has one empty translation.
        """
        config = from_table(TranslationConfig, self.defaults | settings)
        warn = warn or _warn
        pieces = self._pieces(texts, prefixes, config, warn)
        for batch in self._translated(pieces, config):
            if done is not None:
                done(sum(piece.is_first for piece in batch))
        results = [[Hypothesis("", 0.0, 0.0, [])] for _ in texts]
        for number, of_text in groupby(pieces, key=lambda piece: piece.text):
            found = self._joined(number, list(of_text), config, warn)
            results[number] = found if config.sampling else different(found)
        return results

    def _pieces(
        self, texts: Sequence[str], prefixes: Sequence[str] | None, config: TranslationConfig, warn: Warn
    ) -> list[_Piece]:
        """The texts to translate as ids, long ones in several pieces; nothing for empty ones."""
        if prefixes is not None and len(prefixes) != len(texts):
            raise InputError(f"{len(texts)} texts but {len(prefixes)} prefixes")
        target = self.tokenizers[0].target
        forced = [target.opening()] * len(texts) if prefixes is None else target.encode_batch(prefixes)
        encoded = [pair.source.encode_batch(texts) for pair in self.tokenizers]
        limit = min([config.max_source_length, *(limit - 1 for limit in self._position_limits())])
        pieces = []
        for number, text in enumerate(texts):
            parts, cut = [[ids[number] for ids in encoded]], [text]
            if any(len(ids) > limit for ids in parts[0]):
                tag, rest = self.tokenizers[0].source.split_tag(text)
                cut = split_long(rest, limit - bool(tag), self._source_length)
                cut = [f"{tag} {part}" for part in cut] if tag else cut
                parts = [list(ids) for ids in zip(*(p.source.encode_batch(cut) for p in self.tokenizers), strict=True)]
                # Only what cannot be cut any further may still be too long for learned positions.
                lost = [len(ids) for part in parts for ids in part if self._position_limits() and len(ids) > limit]
                parts = [[ids[:limit] for ids in part] for part in parts] if lost else parts
                warn(number, _long_line(max(map(len, (ids[number] for ids in encoded))), limit, len(cut), bool(lost)))
            least = [bool(pair.source.begin) for pair in self.tokenizers]  # what an empty text has
            kept = [
                (source, part)
                for source, part in zip(cut, parts, strict=True)
                if all(len(ids) > opening for ids, opening in zip(part, least, strict=True))
            ]
            pieces += [
                _Piece(
                    number,
                    source,
                    [[*ids, EOS] for ids in part],
                    forced[number] if place == 0 else target.opening(),
                    place == 0,
                )
                for place, (source, part) in enumerate(kept)
            ]
        return pieces

    def _source_length(self, text: str) -> int:
        return max(len(pair.source.encode(text)) for pair in self.tokenizers)

    def _position_limits(self) -> list[int]:
        return [m.config.max_positions for m in self.models if m.config.positions == "learned"]

    def _batches(self, pieces: Sequence[_Piece], config: TranslationConfig) -> Iterator[list[_Piece]]:
        """Pieces of like length together, the longest first, so that what does not fit is known at once."""
        budget = config.batch_tokens or BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"])
        most = BATCH_SENTENCES.get(self.device.type, BATCH_SENTENCES["cpu"])
        batch: list[_Piece] = []
        for piece in sorted(pieces, key=lambda piece: -piece.length):
            if batch and (len(batch) == most or (len(batch) + 1) * batch[0].length > budget):
                yield batch
                batch = []
            batch.append(piece)
        if batch:
            yield batch

    def _translated(self, pieces: list[_Piece], config: TranslationConfig) -> Iterator[list[_Piece]]:
        """Translate the pieces, and yield some when they are done."""
        if self.continuous is not None and not config.sampling and self._suits_slots(pieces, config):
            yield from self._translated_in_slots(pieces, config)
            pieces = [piece for piece in pieces if not piece.is_done]
        yield from self._translated_in_batches(list(self._batches(pieces, config)), config)

    def _suits_slots(self, pieces: list[_Piece], config: TranslationConfig) -> bool:
        free = not any(piece.prefix for piece in pieces)
        return free and ContinuousSearches.suits(config.search, config.no_repeat_ngram)

    def _translated_in_slots(self, pieces: list[_Piece], config: TranslationConfig) -> Iterator[list[_Piece]]:
        """On a GPU. Where memory does not suffice, again with half as many slots; in the end some may be left over."""
        while left := [piece for piece in pieces if not piece.is_done]:
            assert self.continuous is not None
            rules = self._rules(left, config, torch.device("cpu"))
            try:
                for results in self.continuous.search([p.sources[0] for p in left], rules, config.search):
                    batch = [left[number] for number, _ in results]
                    self._keep(batch, [best for _, best in results], config)
                    yield batch
            except torch.OutOfMemoryError:
                if self.continuous.most == 1:
                    return
                self.continuous.forget()
                torch.cuda.empty_cache()
            except CannotFuseError as error:
                warnings.warn(f"searching without fused kernels, which do not run here: {error}", stacklevel=2)
                self.continuous = None
                return

    def _translated_in_batches(self, batches: list[list[_Piece]], config: TranslationConfig) -> Iterator[list[_Piece]]:
        """On a CPU several batches side by side, one core each, are faster than one batch on several cores: no layer is
        large enough to share. Torch lets go of the interpreter's lock inside its operators, and the weights are shared.
        """
        cores = torch.get_num_threads()
        if self.device.type != "cpu" or cores == 1 or len(batches) < 2 * cores:
            for batch in batches:
                self._translate_batch(batch, config)
                yield batch
            return
        torch.set_num_threads(1)
        pool = ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))
        try:
            futures = {pool.submit(self._translate_batch, batch, config): batch for batch in batches}
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(cores)

    def _translate_batch(self, batch: list[_Piece], config: TranslationConfig) -> None:
        try:
            found = self._search(batch, config)
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            torch.cuda.empty_cache()
            half = len(batch) // 2
            self._translate_batch(batch[:half], config)
            self._translate_batch(batch[half:], config)
            return
        self._keep(batch, found, config)

    def _keep(self, batch: list[_Piece], found: list[list[Found]], config: TranslationConfig) -> None:
        target = self.tokenizers[0].target
        for piece, candidates in zip(batch, found, strict=True):
            piece.hypotheses = [
                Hypothesis(
                    target.decode(candidate.symbols),
                    candidate.score,
                    candidate.log_prob,
                    [target.piece(symbol) for symbol in candidate.symbols],
                )
                for candidate in candidates
            ]
            piece.is_done = True
        if config.alignments:
            self._align(batch, found)
        if config.keep_placeholders:
            self._restore_placeholders(batch, found, config)

    def _restore_placeholders(self, batch: list[_Piece], found: list[list[Found]], config: TranslationConfig) -> None:
        lacking = [
            (piece, candidates)
            for piece, candidates in zip(batch, found, strict=True)
            if any(lacks_placeholders(piece.source, hypothesis.text) for hypothesis in piece.hypotheses)
        ]
        if lacking and not config.alignments:
            self._align([piece for piece, _ in lacking], [candidates for _, candidates in lacking])
        for piece, _ in lacking:
            for rank, hypothesis in enumerate(piece.hypotheses):
                assert hypothesis.alignment is not None
                text, alignment = hypothesis.text, hypothesis.alignment
                if lacks_placeholders(piece.source, text):
                    text, alignment = restore_placeholders(piece.source, text, alignment)
                piece.hypotheses[rank] = replace(
                    hypothesis, text=text, alignment=alignment if config.alignments else None
                )

    def _search(self, batch: list[_Piece], config: TranslationConfig) -> list[list[Found]]:
        rules = self._rules(batch, config, self.device)
        count = config.nbest if config.sampling else config.beam
        parts = [model.start(self._padded(batch, i), count, rules.total) for i, model in enumerate(self.prepared)]
        step: Any = self.prepared[0].step if len(parts) == 1 else Ensemble([model.step for model in self.prepared])
        state: Any = parts[0] if len(parts) == 1 else EnsembleState(parts)
        shrinking = Shrinking() if self.device.type == "cpu" else Shrinking(every=4)
        search = config.search
        if config.sampling:
            numbers = random_numbers([p.sources[0] for p in batch], config.seed, count, rules.total + 1)
            draw = Draw(config.draw, numbers.to(self.device))
            return generate(step, state, rules, draw, count, search.penalty, shrinking)
        if config.beam == 1:
            return generate(step, state, rules, Greedy(), 1, search.penalty, shrinking)
        return beam_search(step, state, rules, search, shrinking)

    def _rules(self, batch: list[_Piece], config: TranslationConfig, device: torch.device) -> Rules:
        longest = [
            config.max_length or int(config.max_length_ratio * (piece.length - 1)) + config.max_length_extra
            for piece in batch
        ]
        # The start is a position too.
        most = min([2**31, *(limit - 1 for limit in self._position_limits())])
        return Rules(
            max_lengths=torch.tensor([min(length, most) for length in longest], device=device),
            eos=EOS,
            banned=(BOS, PAD) if config.allow_unknown else (BOS, PAD, UNK),
            min_length=min(config.min_length, most),
            prefix=prefix_table([piece.prefix[:most] for piece in batch], device),
            no_repeat_ngram=config.no_repeat_ngram,
            free=len(self.tokenizers[0].target.opening()),
        )

    def _padded(self, batch: list[_Piece], model: int) -> torch.Tensor:
        sources = [piece.sources[model] for piece in batch]
        width = max(map(len, sources))
        return torch.tensor([ids + [PAD] * (width - len(ids)) for ids in sources], device=self.device)

    def _align(self, batch: list[_Piece], found: list[list[Found]]) -> None:
        """Alignments are those of the first model."""
        sides = (self.tokenizers[0].source, self.tokenizers[0].target)
        for rank in range(max(map(len, found))):
            ranked = [(p, f[rank].symbols) for p, f in zip(batch, found, strict=True) if rank < len(f)]
            weights = attention(
                self.models[0], self._padded([p for p, _ in ranked], 0), [symbols for _, symbols in ranked], EOS
            )
            for (piece, symbols), matrix in zip(ranked, weights, strict=True):
                alignment = align_words(matrix, piece.sources[0][:-1], symbols, sides)
                piece.hypotheses[rank] = replace(piece.hypotheses[rank], alignment=alignment)

    def _joined(self, number: int, pieces: list[_Piece], config: TranslationConfig, warn: Warn) -> list[Hypothesis]:
        """The translations of a text from those of its pieces: the best of each, the second best of each, ..."""
        if not all(piece.hypotheses for piece in pieces):
            warn(number, "has no translation that the settings allow; it is left empty")
            return [Hypothesis("", 0.0, 0.0, [])]
        if len(pieces) == 1:
            return pieces[0].hypotheses
        language = self.tokenizers[0].target.language
        joined = []
        for rank in range(min(len(piece.hypotheses) for piece in pieces)):
            parts = [piece.hypotheses[rank] for piece in pieces]
            alignments = [part.alignment for part in parts if part.alignment is not None]
            log_prob = sum(part.log_prob for part in parts)
            tokens = [token for part in parts for token in part.pieces]
            # Each piece has an end of its own.
            penalty = penalty_table(config.search.penalty, len(tokens) + len(parts))[-1].item()
            joined.append(
                Hypothesis(
                    join_translations([part.text for part in parts], language),
                    log_prob / penalty,
                    log_prob,
                    tokens,
                    Alignment.joined(alignments) if alignments else None,
                )
            )
        return sorted(joined, key=lambda hypothesis: -hypothesis.score)


def _search_in_slots(device: torch.device, models: list[PreparedModel]) -> ContinuousSearches | None:
    """What makes one model fast on a GPU, if the kernels know it."""
    if device.type != "cuda" or len(models) > 1 or not can_fuse(models[0].model):
        return None
    return ContinuousSearches(models[0])


def different(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """The first of each text: the same text can be written by different subwords."""
    texts: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        texts.setdefault(hypothesis.text, hypothesis)
    return list(texts.values())


def check_vocabularies(folder: Path, config: ModelConfig, tokenizers: TokenizerPair) -> None:
    """Refuse a MODEL whose tokenisers say what the model has no vector for."""
    for side in ("source", "target"):
        in_model, in_text = getattr(config, f"{side}_vocab_size"), getattr(tokenizers, side).vocab_size
        if in_model < in_text:
            raise InputError(f"{folder}: the {side} tokeniser has {in_text} symbols, the model only {in_model}")


def _long_line(length: int, limit: int, pieces: int, lost: bool) -> str:
    message = f"has {length:,} subwords, more than max_source_length = {limit}: translated in {pieces} pieces"
    return message + (", of which the longest was cut short" if lost else "")


def _warn(number: int, message: str) -> None:
    warnings.warn(f"text {number + 1} {message}", stacklevel=4)
