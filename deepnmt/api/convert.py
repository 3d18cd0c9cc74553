"""`deepnmt.convert`: a checkpoint of another toolkit becomes a MODEL folder."""

from collections.abc import Sequence
from pathlib import Path

from deepnmt.data.subword_nmt import Codes, SubwordNmt, read_dictionary
from deepnmt.data.tokenizer import Preprocessor, Tokenizer, TokenizerPair
from deepnmt.errors import InputError
from deepnmt.files import check_out, replacing, sha256
from deepnmt.model.conversion import CONVERTERS
from deepnmt.model.storage import CONFIG, META, save_model
from deepnmt.model.transformer import Transformer


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    toolkit: str,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_dict: str | Path | None = None,
    target_dict: str | Path | None = None,
    codes: Sequence[str | Path] = (),
    pretokenizer: Sequence[str] = ("moses",),
    lowercase: bool = False,
    overwrite: bool = False,
) -> Transformer:
    """Write the model of a `checkpoint` to the MODEL folder `out`, and return it.

    `toolkit` is `dlcl` (the code of the paper's authors; also an .npz of its parameters) or `fairseq`. With the
    languages, fairseq's dictionaries (the target's is by default the source's) and subword-nmt's `codes` the MODEL
    translates text; without them it holds the network alone. `codes` and `pretokenizer` have one entry for both sides,
    or one for each.
    """
    checkpoint, out = Path(checkpoint), Path(out)
    if toolkit not in CONVERTERS:
        raise ValueError(f"toolkit = {toolkit!r} must be one of {', '.join(CONVERTERS)}")
    check_out(out, overwrite, "a MODEL folder", META, CONFIG)
    needed = {"source_dict": source_dict, "codes": codes, "source_lang": source_lang, "target_lang": target_lang}
    translates = any(needed.values()) or target_dict is not None
    missing = [f"--{name.replace('_', '-')}" for name, value in needed.items() if not value]
    if translates and missing:
        raise InputError(f"tokenisers also need {', '.join(missing)}")
    for name, values in (("codes", codes), ("pretokenizer", pretokenizer)):
        if len(values) > 2:
            raise InputError(f"--{name} takes one value, or one for each side")

    model = CONVERTERS[toolkit](checkpoint)
    tokenizers = None
    if translates:
        sizes = model.config.source_vocab_size, model.config.target_vocab_size
        sides = [
            _tokenizer(str(language), Path(str(dictionary)), Path(codes[i]), pretokenizer[i], lowercase, size)
            for i, language, dictionary, size in (
                (0, source_lang, source_dict, sizes[0]),
                (-1, target_lang, target_dict or source_dict, sizes[1]),
            )
        ]
        tokenizers = TokenizerPair(*sides)
    origin = {"format": toolkit, "file": checkpoint.name, "sha256": sha256(checkpoint)}
    with replacing(out) as aside:
        save_model(aside, model, {"converted_from": origin})
        if tokenizers is not None:
            tokenizers.save(aside)
    return model


def _tokenizer(
    language: str, dictionary: Path, codes: Path, pretokenizer: str, lowercase: bool, vocab_size: int
) -> Tokenizer:
    symbols = read_dictionary(dictionary)
    subwords = SubwordNmt(Codes.read(codes), symbols)
    if len(subwords.pieces) != vocab_size:
        raise InputError(
            f"{dictionary} makes a vocabulary of {len(subwords.pieces):,} ({len(symbols):,} symbols and the special "
            f"ones), but the embedding has {vocab_size:,} rows: it is not this model's dictionary"
        )
    return Tokenizer(subwords, Preprocessor(language, pretokenizer=pretokenizer, lowercase=lowercase))
