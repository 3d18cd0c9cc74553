"""The special ids, the same in every vocabulary; other symbols follow."""

BOS, PAD, EOS, UNK = range(4)
SPECIAL_PIECES = ("<s>", "<pad>", "</s>", "<unk>")
