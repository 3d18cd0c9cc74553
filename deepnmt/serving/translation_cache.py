"""The most recently used translations of a model."""

from collections import OrderedDict
from itertools import chain
from sys import getsizeof

from deepnmt.serving.batch_queue import Hypotheses, Options, size_of
from deepnmt.serving.terms import Pairs

ENTRY_BYTES = 600  # size of an entry without its texts
Key = tuple[str, Options, Pairs]  # of a translation: the sentence, and the request's own terms that it may contain


class TranslationCache:
    """At most `limit` bytes of translations."""

    def __init__(self, limit: float) -> None:
        self.limit, self.size = limit, 0
        self._entries: OrderedDict[Key, tuple[Hypotheses, int]] = OrderedDict()

    def get(self, key: Key) -> Hypotheses | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Key, hypotheses: Hypotheses) -> None:
        if not self.limit or key in self._entries:
            return
        texts = [key[0], *chain.from_iterable(key[2])]
        size = ENTRY_BYTES + sum(map(getsizeof, texts)) + size_of(hypotheses)
        if size > self.limit:
            return
        self._entries[key] = hypotheses, size
        self.size += size
        while self.size > self.limit:
            _, (_, freed) = self._entries.popitem(last=False)
            self.size -= freed
