"""Raw text in, raw text out: models, their tokenisers and a search joined into one object."""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deepnmt.data.forks import CAN_FORK, ForkedWorkers, as_done
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.data.vocabulary import BOS, EOS, PAD, UNK
from deepnmt.decoding.alignment import attention
from deepnmt.decoding.config import TranslationConfig
from deepnmt.decoding.continuous import CannotFuseError, ContinuousSearches, can_fuse
from deepnmt.decoding.glossary import Glossary, lacks_terms, windows
from deepnmt.decoding.likelihood import Likelihood, likelihoods
from deepnmt.decoding.lines import Warn
from deepnmt.decoding.mbr import by_expected_utility
from deepnmt.decoding.pairwise import pairwise
from deepnmt.decoding.pieces import Hypothesis as Hypothesis
from deepnmt.decoding.pieces import Piece, batched, cut_texts, join_pieces, keep_found, padded
from deepnmt.decoding.prepared import PreparedModel, prepare
from deepnmt.decoding.rules import Rules, prefix_table
from deepnmt.decoding.sampling import Paths, random_numbers
from deepnmt.decoding.search import Beams, EnsembleState, Found, Growing, ensemble_step, search
from deepnmt.decoding.shortlist import Shortlist
from deepnmt.decoding.term_search import Term, TermBeams, beam_width
from deepnmt.devices import choose_device
from deepnmt.errors import InputError
from deepnmt.model.config import ModelConfig
from deepnmt.model.storage import META, load_meta, load_model
from deepnmt.model.transformer import Transformer
from deepnmt.settings import from_table

BATCH_TOKENS = {"cpu": 3072, "cuda": 24_576}
BATCH_SENTENCES = {"cpu": 64, "cuda": 1024}
MAX_LENGTH = 100_000  # subwords of a translation, whatever the settings say: memory is allocated for them
SMALL_BATCH = 8  # sentences
ROWS = {"cpu": 512, "cuda": 8192}  # hypotheses in a batch of the search for terms or of samples, if there are many


class Translator:
    """Translates with one model or an ensemble; `device` is cpu or cuda, `precision` fp32, bf16, fp16 or int8.

    `shortlist`: on a CPU, use the first model's lexical shortlist, which `deepnmt.make_shortlist` makes.
    """

    shortlist: Shortlist | None = None
    _opened: tuple[Any, ...] | None = None  # the arguments of a translator that was loaded from folders
    _forks: ForkedWorkers | None = None
    _number = 0  # among the translators of these

    def __init__(
        self,
        model: str | Path | Sequence[str | Path],
        device: str | None = "cpu",
        precision: str = "fp32",
        shortlist: bool = False,
    ) -> None:
        folders = [Path(folder) for folder in ([model] if isinstance(model, str | Path) else model)]
        if not folders:
            raise InputError("a translator needs at least one model")
        self._opened = [folder.resolve() for folder in folders], device, precision, shortlist
        chosen = choose_device(device)
        self.defaults, *_ = map(default_settings, folders)
        self.tokenizers = [TokenizerPair.load(folder) for folder in folders]
        for folder, pair in zip(folders[1:], self.tokenizers[1:], strict=True):
            if pair.target.pieces != self.tokenizers[0].target.pieces:
                raise InputError(
                    f"{folder} and {folders[0]} have different target vocabularies and cannot form an ensemble"
                )
        if shortlist:
            if torch.device(chosen).type != "cpu":
                raise InputError(f"a shortlist is for the CPU; on {chosen} omit --shortlist")
            self.shortlist = Shortlist.load(folders[0], self.tokenizers[0])
        models = [load_model(folder, chosen) for folder in folders]
        for folder, loaded, pair in zip(folders, models, self.tokenizers, strict=True):
            check_vocabularies(folder, loaded.config, pair)
            check_weights(folder, loaded)
            if loaded.config.target_vocab_size != (size := models[0].config.target_vocab_size):
                rows = f"{loaded.config.target_vocab_size} output rows, but {folders[0]} has {size}"
                raise InputError(f"{folder} has {rows}: they cannot form an ensemble")
        self._use([prepare(loaded, precision) for loaded in models])

    @classmethod
    def of(cls, model: Transformer, tokenizers: TokenizerPair, precision: str | None = None) -> "Translator":
        """A translator around a model in memory, such as one that is being trained; the model is not changed.

        With a precision, the model is changed for speed, like one that is loaded.
        """
        translator = cls.__new__(cls)
        translator.tokenizers, translator.defaults = [tokenizers], {}
        translator._use([PreparedModel(model) if precision is None else prepare(model, precision)])
        if precision is None:
            translator.continuous = None
        return translator

    def _use(self, prepared: list[PreparedModel]) -> None:
        self.prepared, self.models = prepared, [each.model for each in prepared]
        self.device = self.models[0].output_weight.device
        self.max_positions = min(model.config.position_limit or sys.maxsize for model in self.models)
        fusible = self.device.type == "cuda" and len(prepared) == 1 and can_fuse(self.models[0])
        self.continuous = ContinuousSearches(prepared[0]) if fusible else None

    def for_languages(self, source: str | None, target: str | None) -> "Translator":
        """The same translator for one pair of the model's languages; None: the default."""
        if source is None and target is None:
            return self
        other = Translator.__new__(Translator)
        vars(other).update(vars(self))
        other.tokenizers = [pair.for_languages(source, target) for pair in self.tokenizers]
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy loads the model again: packed weights cannot be pickled."""
        if self._opened is None:
            raise TypeError("a Translator around a model in memory cannot be pickled or copied")
        pair = self.tokenizers[0]
        return _reopened, (self._opened, pair.source.language, pair.target.language)

    def translate(self, texts: Iterable[str], **settings: Any) -> list[str]:
        """The best translation of each text; `settings` are those of `translate_nbest`."""
        return [hypotheses[0].text for hypotheses in self.translate_nbest(texts, **{**settings, "nbest": 1})]

    def translate_nbest(
        self,
        texts: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        terms: Mapping[str, str] | Glossary | None = None,
        warn: Warn | None = None,
        done: Callable[[int], None] | None = None,
        **settings: Any,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each text, best first, never none; all different, unless they are drawn.

        `settings` are the fields of `TranslationConfig`; `prefixes` are what the translations must begin with; `terms`
        of the source language, wherever they occur, must be translated as given; `done` is called with the number of
        texts of each batch. A text of spaces only has one empty translation.
        """
        config = from_table(TranslationConfig, self.defaults | settings)
        warn = warn or _warn
        texts, prefixes = _strings("texts", texts), None if prefixes is None else _strings("prefixes", prefixes)
        if terms and config.draws:
            raise InputError(f"terms need a beam search: omit them, or {'mbr' if config.mbr else 'sampling'}")
        if config.mbr:
            pairwise(config.mbr, self.tokenizers[0].target.language)  # refuses a language that it cannot split
        pieces = cut_texts(texts, prefixes, self.tokenizers, self.max_positions, config.max_source_length, warn)
        glossary = terms if isinstance(terms, Glossary) else self.glossary(terms) if terms else None
        batches = self._translated(pieces, config)
        if glossary:
            batches = self._translated_with_terms(glossary, pieces, config, warn)
        for batch in batches:
            if done is not None:
                done(sum(piece.is_first for piece in batch))
        for piece in pieces:
            if self._opened and not piece.hypotheses:  # a model in training may overflow and recover
                self._check_output(piece, self._opened[0])
        return join_pieces(len(texts), pieces, self.tokenizers[0].target.language, config, warn)

    def glossary(self, terms: Mapping[str, str], max_symbols: int = sys.maxsize) -> Glossary:
        """Terms of the source language and their translations, encoded once for many calls of `translate`; at most
        `max_symbols` subwords of terms are required of one text."""
        return Glossary(terms, self.tokenizers[0], max_symbols)

    def likelihoods(
        self, texts: Iterable[str], translations: Iterable[str], *, done: Callable[[int], None] = lambda number: None
    ) -> list[Likelihood]:
        """The log probability of each subword of these translations of the texts. For one model, not an ensemble."""
        if len(self.prepared) > 1:
            raise InputError(f"likelihoods are those of one model, not of {len(self.prepared)}")
        texts, translations = _strings("texts", texts), _strings("translations", translations)
        if len(texts) != len(translations):
            raise InputError(f"{len(texts)} texts but {len(translations)} translations")
        return likelihoods(self.prepared[0], self.tokenizers[0], texts, translations, self.max_positions, done)

    def _translated(self, pieces: list[Piece], config: TranslationConfig) -> Iterator[list[Piece]]:
        """Translate the pieces, and yield some when they are done."""
        opening = self.tokenizers[0].target.opening()
        free = not config.draws and all(piece.prefix == opening for piece in pieces)
        if self.continuous is not None and free and ContinuousSearches.suits(config, config.no_repeat_ngram):
            yield from self._translated_in_slots(self.continuous, pieces, config)
            pieces = [piece for piece in pieces if not piece.is_done]
        # The longest first, so that running out of memory shows at once.
        budget, rows = (_of_device(of, self.device) for of in (BATCH_TOKENS, ROWS))
        most = self._most_sentences(len(pieces))
        if config.draws:
            most = max(min(most, rows // config.draws), 1)
        longest_first = sorted(pieces, key=lambda piece: -piece.length)
        batches = batched(longest_first, lambda piece: piece.length, config.batch_tokens or budget, most)
        yield from self._translated_in_batches(list(batches), config)

    def _translated_with_terms(
        self, glossary: Glossary, pieces: list[Piece], config: TranslationConfig, warn: Warn
    ) -> Iterator[list[Piece]]:
        """Translate the pieces, and then those again whose best hypothesis lacks the rendering of a term."""
        lacking: list[Piece] = []
        for batch in self._translated(pieces, config):
            for piece in batch:
                terms = glossary.in_text(piece.source) if piece.hypotheses else []
                piece.renderings = terms if terms and lacks_terms(piece.hypotheses[0].text, terms) else []
            lacking += [piece for piece in batch if piece.renderings]
            yield [piece for piece in batch if not piece.renderings]
        before = [piece.hypotheses for piece in lacking]
        yield from self._translated_again(lacking, config)
        for piece, hypotheses in zip(lacking, before, strict=True):
            if not piece.hypotheses:
                piece.hypotheses = hypotheses
                warn(piece.text, "cannot get all its terms with these settings; it is translated without them")

    def _translated_again(self, pieces: list[Piece], config: TranslationConfig) -> Iterator[list[Piece]]:
        """With each rendering near the symbols that are aligned with its term or, if the rules forbid that, anywhere;
        in batches of similar beam widths and lengths."""
        budget, rows = (_of_device(of, self.device) for of in (BATCH_TOKENS, ROWS))

        def width(piece: Piece) -> int:
            return beam_width(config.beam, piece.renderings)

        def share(piece: Piece) -> float:
            return max(width(piece) / rows, piece.length / budget)

        for _ in range(2):
            widest_first = sorted(pieces, key=lambda piece: (-width(piece), -piece.length))
            batches = batched(widest_first, share, 1, self._most_sentences(len(pieces)))
            yield from self._translated_in_batches(list(batches), config)
            pieces = [piece for piece in pieces if not piece.hypotheses]
            for piece in pieces:
                piece.terms = [Term(term.symbols) for term in piece.renderings]

    def _most_sentences(self, count: int) -> int:
        """In a batch of `count` pieces."""
        most = _of_device(BATCH_SENTENCES, self.device)
        if self.device.type == "cpu":
            most = min(most, share_of_core(count, torch.get_num_threads(), self._forks is not None))
        return most

    def _place_terms(self, batch: list[Piece]) -> None:
        """Near what the symbols of the best hypothesis are aligned with."""
        source = padded([piece.sources[0] for piece in batch], device=self.device)
        matrices = attention(self.models[0], source, [piece.symbols for piece in batch], EOS)
        for piece, matrix in zip(batch, matrices, strict=True):
            piece.terms = windows(piece.renderings, matrix)

    @torch.inference_mode()
    def _check_output(self, piece: Piece, folders: Sequence[Path]) -> None:
        """Refuse a model whose output for a piece is not a number: such a search finds no hypothesis either."""
        for folder, prepared, ids in zip(folders, self.prepared, piece.sources, strict=True):
            source = torch.tensor([ids], device=self.device)
            logits, _ = prepared.step(torch.tensor([EOS], device=self.device), prepared.start(source, 1))
            if not (logits < torch.inf).all():
                text = piece.source if len(piece.source) <= 40 else f"{piece.source[:40]}…"
                message = f"{folder}: the model's output for {text!r} is not a number (NaN); "
                raise InputError(message + "if the precision is fp16, use bf16 or fp32")

    @torch.inference_mode()
    def _try_step(self) -> None:
        """Compute a little with everything that translating uses, MKL's memory manager included."""
        torch.ones(256, 256).mm(torch.ones(256, 256))
        end = torch.tensor([EOS])
        for prepared in self.prepared:
            prepared.step(end, prepared.start(end[None], 1))

    def _translated_in_slots(
        self, searches: ContinuousSearches, pieces: list[Piece], config: TranslationConfig
    ) -> Iterator[list[Piece]]:
        """On a GPU. When memory runs out, retry with half as many slots; pieces that fit in none are left over."""
        while left := [piece for piece in pieces if not piece.is_done]:
            rules = self._rules(left, config, torch.device("cpu"))
            try:
                for results in searches.search([piece.sources[0] for piece in left], rules, config.search):
                    batch = [left[number] for number, _ in results]
                    self._keep(batch, [best for _, best in results], config)
                    yield batch
            except torch.OutOfMemoryError:
                if searches.most == 1:
                    return
                searches.forget()
                torch.cuda.empty_cache()
            except CannotFuseError as error:
                warnings.warn(f"searching without fused kernels, which do not run here: {error}", stacklevel=2)
                self.continuous = None
                return

    def _translated_in_batches(self, batches: list[list[Piece]], config: TranslationConfig) -> Iterator[list[Piece]]:
        """On a CPU several batches side by side, one per core, are faster than one batch on several cores, because the
        layers are small. The weights are shared.
        """
        cores = torch.get_num_threads()
        if self.device.type != "cpu" or cores == 1 or len(batches) < cores:
            for batch in batches:
                yield self._translate_batch(batch, config)
            return
        torch.set_num_threads(1)
        try:
            if self._forks is not None and self._forks.start():
                pair = self.tokenizers[0]
                languages = pair.source.language, pair.target.language
                tasks = [(self._number, languages, batch, config) for batch in batches]
                for (*_, batch, _), copies in self._forks.as_done(tasks):
                    for piece, copy in zip(batch, copies, strict=True):
                        vars(piece).update(vars(copy))
                    yield batch
                return
            with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
                for batch, _ in as_done(lambda batch: threads.submit(self._translate_batch, batch, config), batches):
                    yield batch
        finally:
            torch.set_num_threads(cores)

    def _translate_batch(self, batch: list[Piece], config: TranslationConfig) -> list[Piece]:
        if batch[0].renderings and not batch[0].terms:
            self._place_terms(batch)
        try:
            found = self._search(batch, config)
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            torch.cuda.empty_cache()
            half = len(batch) // 2
            self._translate_batch(batch[:half], config)
            self._translate_batch(batch[half:], config)
            return batch
        self._keep(batch, found, config)
        return batch

    def _keep(self, batch: list[Piece], found: list[list[Found]], config: TranslationConfig) -> None:
        if config.mbr:
            target = self.tokenizers[0].target
            utility = pairwise(config.mbr, target.language)
            texts = [[target.decode(sample.symbols) for sample in samples] for samples in found]
            ranked = map(partial(by_expected_utility, utility=utility), found, texts)
            found = [samples[: config.nbest] for samples in ranked]
        for piece, candidates in zip(batch, found, strict=True):
            piece.symbols = candidates[0].symbols if candidates else []
        keep_found(batch, found, config, self.models[0], self.tokenizers[0])

    def _search(self, batch: list[Piece], config: TranslationConfig) -> list[list[Found]]:
        rules, listed = self._rules(batch, config, self.device), None
        steps: list[Any] = [model.step for model in self.prepared]
        if self.shortlist is not None and not batch[0].terms:
            vocab_size = self.models[0].config.target_vocab_size
            listed = self.shortlist.of_batch([piece.sources[0] for piece in batch], rules, vocab_size)
            rules = listed.rules
            steps = [listed.step(model.restricted(listed.symbols).step) for model in self.prepared]
        growing = self._growing(batch, rules, config)
        sources = [padded(part, device=self.device) for part in zip(*(piece.sources for piece in batch), strict=True)]
        count = growing.last.shape[1]
        beam, families = (1, count) if isinstance(growing, Paths) else (count, 1)  # paths are never reordered
        models = zip(self.prepared, sources, strict=True)
        parts: list[Any] = [model.start(ids, beam, families) for model, ids in models]
        if listed is not None:
            parts = [listed.state(part) for part in parts]
        step = steps[0] if len(parts) == 1 else partial(ensemble_step, steps)
        state = parts[0] if len(parts) == 1 else EnsembleState(parts)
        shrink_every = 1 if self.device.type == "cpu" else 4
        found = search(step, state, growing, shrink_every)
        return found if listed is None else listed.as_ids(found)

    def _growing(self, batch: list[Piece], rules: Rules, config: TranslationConfig) -> Growing:
        if batch[0].terms:
            return TermBeams(rules, config, [piece.terms for piece in batch])
        if not config.draws and (config.beam > 1 or config.patience > 1):  # else the same as greedy search
            return Beams(rules, config)
        numbers = None
        if config.draws:
            sentences = [piece.sources[0] for piece in batch]
            numbers = random_numbers(sentences, config.seed, config.draws, rules.total + 1).to(self.device)
        return Paths(rules, config, numbers)

    def _rules(self, batch: list[Piece], config: TranslationConfig, device: torch.device) -> Rules:
        end = len(self.tokenizers[0].source.ending)
        longest = [
            config.max_length or int(config.max_length_ratio * (piece.length - end)) + config.max_length_extra
            for piece in batch
        ]
        needed = [len(piece.prefix) + sum(len(term.symbols) for term in piece.terms) for piece in batch]
        most = min(self.max_positions - 1, MAX_LENGTH)  # the start is a position too
        nameless = range(self.tokenizers[0].target.vocab_size, self.models[0].config.target_vocab_size)
        return Rules(
            max_lengths=torch.tensor(
                [min(max(pair), most) for pair in zip(longest, needed, strict=True)], device=device
            ),
            eos=EOS,
            banned=(BOS, PAD, *([] if config.allow_unknown else [UNK]), *nameless),
            min_length=min(config.min_length, most),
            prefix=prefix_table([piece.prefix[:most] for piece in batch], device),
            no_repeat_ngram=config.no_repeat_ngram,
            free=len(self.tokenizers[0].target.opening()),
        )


@contextmanager
def in_processes(*translators: Translator, now: bool = False) -> Iterator[None]:
    """Inside this block, these translators use forked processes on a CPU, one per core, instead of threads, which take
    turns with the interpreter. For programs that know what the other threads of their process do. Processes are forked
    with the first batches, or now. If one dies, so does the current translation; later ones use threads again.
    """
    cores = torch.get_num_threads()
    if not CAN_FORK or cores == 1 or any(translator.device.type != "cpu" for translator in translators):
        yield
        return

    def translate(task: tuple[int, tuple[str, str], list[Piece], TranslationConfig]) -> list[Piece]:
        number, languages, batch, config = task
        torch.set_num_threads(1)  # those of the parent are not here
        return translators[number].for_languages(*languages)._translate_batch(batch, config)

    def trial() -> None:
        torch.set_num_threads(1)
        for translator in translators:
            translator._try_step()

    forks = ForkedWorkers(cores, translate, trial)
    if now:
        forks.start()
    for number, translator in enumerate(translators):
        translator._forks, translator._number = forks, number
    try:
        yield
    finally:
        forks.end()
        for translator in translators:
            translator._forks = None


def default_settings(folder: Path) -> dict[str, Any]:
    """The settings that a MODEL folder defines for translating with it."""
    settings, where = load_meta(folder).get("decoding", {}), f"{folder / META}: decoding"
    if not isinstance(settings, dict):
        raise InputError(f"{where} must be a table of settings, not {settings!r}")
    from_table(TranslationConfig, settings, where)
    return settings


def _of_device(figures: Mapping[str, int], device: torch.device) -> int:
    return figures.get(device.type, figures["cpu"])


def share_of_core(sentences: int, cores: int, is_forked: bool) -> int:
    """The largest batch with which every core has work: two batches, a long and a short one, unless they are tiny.

    All cores work on one batch if there are fewer sentences than cores, or, in threads, whenever batches were tiny.
    """
    share, half = sentences // cores, math.ceil(sentences / (2 * cores))
    if sentences < cores or (not is_forked and half < SMALL_BATCH):
        return sentences
    return max(half, min(share, SMALL_BATCH))


def _reopened(arguments: tuple[Any, ...], source: str, target: str) -> Translator:
    return Translator(*arguments).for_languages(source, target)


def _strings(name: str, texts: Iterable[str]) -> list[str]:
    """A list of the texts, which must not be a single string."""
    if isinstance(texts, str):
        raise InputError(f"{name} must be a list of strings, not one string")
    texts = list(texts)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise InputError(f"{name} must be strings, but number {number:,} is {text!r}")
    return texts


def check_vocabularies(folder: Path, config: ModelConfig, tokenizers: TokenizerPair) -> None:
    """Refuse a MODEL whose tokenisers have symbols that the model has no vector for."""
    for side in ("source", "target"):
        in_model, in_text = getattr(config, f"{side}_vocab_size"), getattr(tokenizers, side).vocab_size
        if in_model < in_text:
            raise InputError(f"{folder}: the {side} tokeniser has {in_text} symbols, the model only {in_model}")


def check_weights(folder: Path, model: Transformer) -> None:
    """Refuse a MODEL with weights that are not numbers. Its output may be one: some kernels take relu(NaN) for zero."""
    for name, weight in model.named_parameters():
        if weight.sum(dtype=torch.float32).isnan():
            raise InputError(f"{folder}: not all weights of {name} are numbers (NaN); did its training diverge?")


def _warn(number: int, message: str) -> None:
    warnings.warn(f"text {number + 1} {message}", stacklevel=4)
