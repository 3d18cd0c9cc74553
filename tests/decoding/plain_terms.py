"""The search for terms as a slow loop over lists, written from its definition alone."""

import numpy as np
from tables import EOS, Table

from deepnmt.decoding.config import SearchConfig
from deepnmt.decoding.search import PENALTIES
from deepnmt.decoding.term_search import Term


def matched(symbols: list[int], terms: list[Term]) -> tuple[set[int], int]:
    """Reading from the left: the terms that are complete, and how many symbols at the end begin another one.

    A term is complete where its last symbol stands; it begins after the end of the one before.
    """
    complete, start = set[int](), 0
    for end in range(1, len(symbols) + 1):
        for first in range(start, end):
            read = tuple(symbols[first:end])
            left = [(number, term.symbols) for number, term in enumerate(terms) if number not in complete]
            done = [number for number, phrase in left if phrase == read]
            if done:
                complete.add(done[0])
                start = end
                break
            if any(phrase[: len(read)] == read for _, phrase in left):
                break  # the longest beginning counts: what is inside it must wait
    left = [term.symbols for number, term in enumerate(terms) if number not in complete]
    sizes = range(len(symbols) - start, 0, -1)
    begun = next((n for n in sizes if any(phrase[:n] == tuple(symbols[-n:]) for phrase in left)), 0)
    return complete, begun


def plain_term_search(
    table: Table,
    sentence: int,
    terms: list[Term],
    config: SearchConfig,
    longest: int,
    prefix: list[int],
    min_length: int = 0,
    no_repeat_ngram: int = 0,
) -> list[tuple[float, list[int]]]:
    """The n best as (score, symbols); never stops early."""
    longest = max(longest, min_length, len(prefix))
    width = config.beam + len(terms)
    live: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[tuple[list[int], float]] = []

    def count(symbols: list[int]) -> int:
        complete, begun = matched(symbols, terms)
        return sum(len(terms[number].symbols) for number in complete) + begun

    def is_complete(symbols: list[int]) -> bool:
        return len(matched(symbols, terms)[0]) == len(terms)

    def is_late(symbols: list[int]) -> bool:
        """A term that is neither complete nor begun may not begin any more."""
        complete, begun = matched(symbols, terms)
        for number, term in enumerate(terms):
            if number not in complete:
                is_begun = term.symbols[:begun] == tuple(symbols[len(symbols) - begun :])
                if len(symbols) - (begun if is_begun else 0) > term.last:
                    return True
        return False

    def repeats(symbols: list[int]) -> bool:
        size = no_repeat_ngram
        grams = [symbols[i : i + size] for i in range(len(symbols) - size + 1)]
        return bool(size and grams) and grams[-1] in grams[:-1]

    def wanted_next(symbols: list[int]) -> set[int]:
        complete, begun = matched(symbols, terms)
        left = [term for number, term in enumerate(terms) if number not in complete]
        tail = tuple(symbols[len(symbols) - begun :])
        following = {term.symbols[begun] for term in left if begun and term.symbols[:begun] == tail}
        return following | {term.symbols[0] for term in left if term.first <= len(symbols) <= term.last}

    for position in range(longest + 1):
        extended, ends = [], []
        for symbols, log_prob in live:
            logits = table.logits(sentence, tuple(symbols)).astype(np.float64)
            log_probs = logits - np.log(np.exp(logits).sum())
            if position < len(prefix):
                choices = {prefix[position]}
            else:
                if position >= min_length and is_complete(symbols):
                    ends.append((symbols, log_prob + log_probs[EOS]))
                words = [symbol for symbol in range(EOS + 1, len(log_probs)) if not repeats([*symbols, symbol])]
                words = sorted(words, key=lambda symbol: -log_probs[symbol]) if position < longest else []
                choices = {*words[:width], *(wanted_next(symbols) & {*words})}
            extended += [([*symbols, symbol], log_prob + log_probs[symbol]) for symbol in choices]
        extended = sorted((item for item in extended if not is_late(item[0])), key=lambda item: -item[1])
        counts = sorted({count(symbols) for symbols, _ in extended}, reverse=True)
        groups = [[item for item in extended if count(item[0]) == number] for number in counts]
        live = []
        while any(groups) and len(live) < width:
            for group in groups:
                if group and len(live) < width:
                    live.append(group.pop(0))
        rivals = [log_prob for symbols, log_prob in live if is_complete(symbols)]
        places = len(rivals) or (1 if live else len(ends))
        best = sorted([*rivals, *(log_prob for _, log_prob in ends)], reverse=True)[:places]
        ended += [item for item in ends if item[1] >= best[-1]]
        if not live or len(ended) >= config.patience * config.beam:
            break
    penalty = PENALTIES[config.penalty_form]
    ranked = [(log_prob / penalty(len(s) + 1, config.length_penalty), s) for s, log_prob in ended]
    return sorted(ranked, key=lambda item: -item[0])[: config.nbest]
