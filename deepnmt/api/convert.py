"""`deepnmt.convert`: another toolkit's model to a MODEL folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from deepnmt.data.conversion import TEXTS, read_text
from deepnmt.data.conversion.given import read_given
from deepnmt.data.conversion.marian import is_exported
from deepnmt.data.conversion.text import ForeignText, numbered
from deepnmt.data.subword_nmt import read_dictionary
from deepnmt.data.tokenizer import TokenizerPair
from deepnmt.errors import InputError, RunError
from deepnmt.files import check_out, read_json, replacing, sha256
from deepnmt.model.conversion import FORMATS, WITH_VOCABULARIES, convert_model
from deepnmt.model.conversion.reading import ForeignModel
from deepnmt.model.conversion.rebuild import Numbering, rebuild
from deepnmt.model.conversion.sockeye import PARAMETERS
from deepnmt.model.folding import folded
from deepnmt.model.storage import CONFIG, META, load_meta, load_model, save_model
from deepnmt.model.sublayers import SUBLAYERS
from deepnmt.model.transformer import Transformer
from deepnmt.settings import to_table
from deepnmt.training.folder import copy_tokenizers

SAME = 1e-10  # relative, in double precision
MODEL_TYPES = {"marian": "marian", "m2m_100": "m2m100", "fsmt": "fsmt"}  # in Hugging Face's config.json


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    toolkit: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_dict: str | Path | None = None,
    target_dict: str | Path | None = None,
    codes: Sequence[str | Path] = (),
    tokenizer: Sequence[str | Path] = (),
    pretokenizer: Sequence[str] = (),
    lowercase: bool = False,
    overwrite: bool = False,
) -> Transformer:
    """Convert `checkpoint`, a file or folder, to the MODEL folder `out`, and return the model.

    `toolkit` is `marian` (Marian or Hugging Face folder), `m2m100`, `nllb` or `fsmt` (Hugging Face folders), `exported`
    (a folder of `deepnmt export --to huggingface`, perhaps trained further), `dlcl` (the authors' code, or an .npz of
    its parameters), `fairseq`, `opennmt-py` or `sockeye` (a model folder of Sockeye 3, or a file of parameters in it).
    For a folder it is detected by default. A folder, except Sockeye's, includes the tokenisers; for a multilingual
    model, `source_lang` and `target_lang` set the default languages.

    For dlcl, fairseq, opennmt-py and sockeye, the languages and either subword-nmt's `codes` or SentencePiece models
    (`tokenizer`) are needed to translate text, and fairseq's dictionaries for the first two (`source_dict`, and
    `target_dict` if it is another one); without them the MODEL has no tokenisers. `codes`, `tokenizer` and
    `pretokenizer` have one entry for both sides, or one per side; `pretokenizer` defaults to moses with codes, and to
    none with SentencePiece. `lowercase`: the model was trained on lowercased text. `overwrite` replaces a MODEL.
    """
    checkpoint, out = Path(checkpoint), Path(out)
    toolkit = toolkit or recognise(checkpoint)
    if toolkit not in FORMATS:
        raise InputError(f"toolkit = {toolkit!r} must be one of {', '.join(FORMATS)}")
    check_out(out, overwrite, "a MODEL folder", META, CONFIG)
    dictionaries = {"source_dict": source_dict, "target_dict": target_dict}
    subwords = {"codes": codes, "tokenizer": tokenizer, "pretokenizer": pretokenizer, "lowercase": lowercase}
    text: ForeignText | None
    if toolkit in TEXTS:
        _refuse({**dictionaries, **subwords}, f"{toolkit}, whose folder has tokenisers")
        text = read_text(toolkit, checkpoint, source_lang, target_lang)
        model = convert_model(checkpoint, toolkit, text.numbering)
    else:
        model, text = _convert_checkpoint(checkpoint, toolkit, (source_lang, target_lang), dictionaries, subwords)
    if text is not None:
        _check_sizes(checkpoint, model, text.tokenizers)
    with replacing(out) as aside:
        save_model(aside, model, _meta(checkpoint, toolkit, text))
        if text is not None:
            text.tokenizers.save(aside)
    return model


def _convert_checkpoint(
    path: Path,
    toolkit: str,
    languages: tuple[str | None, str | None],
    dictionaries: Mapping[str, str | Path | None],
    subwords: Mapping[str, Any],
) -> tuple[Transformer, ForeignText | None]:
    """A model whose tokenisers are defined by options, which are given together or not at all."""
    needed = {"`codes` or `tokenizer`": subwords["codes"] or subwords["tokenizer"]}
    if toolkit in WITH_VOCABULARIES:
        _refuse(dictionaries, f"{toolkit}, whose checkpoint has the vocabularies")
    else:
        needed = {"`source_dict`": dictionaries["source_dict"], **needed}
    needed |= {"`source_lang`": languages[0], "`target_lang`": languages[1]}
    has_text = any([*dictionaries.values(), *subwords.values(), *languages])
    if has_text and (missing := [option for option, value in needed.items() if not value]):
        raise InputError(f"to convert tokenisers, also give {', '.join(missing)}")
    if subwords["codes"] and subwords["tokenizer"]:
        raise InputError("give either `codes` or `tokenizer`, not both")
    for option in ("codes", "tokenizer", "pretokenizer"):
        if len(subwords[option]) > 2:
            raise InputError(f"`{option}` takes one value for both sides, or one per side")
    foreign = FORMATS[toolkit](path)
    vocabularies, numbering = _vocabularies(foreign, **dictionaries)
    model = rebuild(foreign, numbering)
    if not has_text:
        return model, None
    pair = read_given(vocabularies, list(map(str, languages)), **subwords, source_ends=foreign.source_ends)
    return model, ForeignText(pair)


def _refuse(options: Mapping[str, object], toolkit: str) -> None:
    if given := [f"`{option}`" for option, value in options.items() if value]:
        verb = "is" if len(given) == 1 else "are"
        raise InputError(f"{' and '.join(given)} {verb} not used with {toolkit}")


def _vocabularies(
    foreign: ForeignModel, source_dict: str | Path | None, target_dict: str | Path | None
) -> tuple[list[list[str]], Numbering | None]:
    """The symbols of both sides that follow the special ones, and their rows if they are not in this order."""
    if foreign.vocabularies is not None:
        (source, rows), (target, target_rows) = (numbered(side, foreign.path) for side in foreign.vocabularies)
        return [source, target], (rows, target_rows)
    paths = (source_dict, target_dict or source_dict) if source_dict else ()
    return [read_dictionary(Path(path)) for path in paths], None


def fold(folder: str | Path, out: str | Path, *, overwrite: bool = False) -> tuple[Transformer, float]:
    """Write to `out` a MODEL that is equivalent to the MODEL `folder`, with plain pre- or post-norm sub-layers.

    `overwrite` replaces an existing MODEL. Returns the model, and the largest difference between the logits of both on
    random sentences, in double precision and relative to the largest logit.
    """
    folder, out = Path(folder), Path(out)
    meta, model = load_meta(folder), load_model(folder)
    plain = folded(model)
    if plain is model:
        able = ", ".join(kind for kind, scheme in SUBLAYERS.items() if scheme.folds_into)
        raise InputError(
            f"{folder} has no sub-layers that can be folded; these can: {able} (admin only in a residual stack)"
        )
    check_out(out, overwrite, "a MODEL folder", META, CONFIG)
    exact = load_model(folder).double()
    difference = _difference(exact, folded(exact))
    if not difference <= SAME:  # or not a number
        raise RunError(f"{folder}: folding changes its logits by {difference:.1e} of the largest; nothing was written")
    with replacing(out) as aside:
        about = {name: value for name, value in meta.items() if name not in ("format", "deepnmt")}
        save_model(aside, plain, {**about, "folded_from": to_table(model.config)})
        copy_tokenizers(folder, aside)
    return plain, difference


@torch.no_grad()
def _difference(model: Transformer, plain: Transformer) -> float:
    config, random = model.config, torch.Generator().manual_seed(0)
    length = min(20, config.max_positions)
    source = torch.randint(config.source_vocab_size, (8, length), generator=random)
    target = torch.randint(config.target_vocab_size, (8, length), generator=random)
    expected = model(source, target)
    return float((plain(source, target) - expected).abs().max() / expected.abs().max())


def recognise(checkpoint: Path) -> str:
    """Detect the format of a folder; a file does not show which toolkit wrote it."""
    if not checkpoint.exists():
        raise InputError(f"{checkpoint} does not exist")
    if not checkpoint.is_dir():
        formats = " or ".join(toolkit for toolkit in FORMATS if toolkit not in TEXTS)
        raise InputError(f"{checkpoint} is a file; name its format with `toolkit` {formats}")
    if (checkpoint / "config.json").is_file():
        model_type = read_json(checkpoint / "config.json").get("model_type")
        if is_exported(checkpoint):
            return "exported"
        if (checkpoint / "meta.json").is_file():
            raise InputError(f"{checkpoint} is a MODEL folder already; `deepnmt export` writes it for other toolkits")
        if model_type not in MODEL_TYPES:
            raise InputError(f"{checkpoint} has model_type {model_type!r}; supported are {', '.join(MODEL_TYPES)}")
        toolkit = MODEL_TYPES[model_type]
        return "nllb" if toolkit == "m2m100" and not (checkpoint / "vocab.json").is_file() else toolkit
    if any(checkpoint.glob("*.npz")):
        return "marian"
    if (checkpoint / PARAMETERS).exists():
        return "sockeye"
    raise InputError(f"{checkpoint} is not a supported model: it has no config.json, .npz file or {PARAMETERS}")


def _meta(checkpoint: Path, toolkit: str, text: ForeignText | None) -> dict[str, object]:
    origin = {"format": toolkit, "file": checkpoint.resolve().name}
    if checkpoint.is_file():
        origin["sha256"] = sha256(checkpoint)
    meta: dict[str, object] = {"converted_from": origin}
    if text is not None and text.decoding:
        meta["decoding"] = dict(text.decoding)
    if text is not None and text.tokenizers.is_multilingual:
        meta["languages"] = dict(zip(("source", "target"), text.tokenizers.languages, strict=True))
    return meta


def _check_sizes(checkpoint: Path, model: Transformer, tokenizers: TokenizerPair) -> None:
    """Check that the vocabularies have as many symbols as the embeddings have rows."""
    for side in ("source", "target"):
        rows, symbols = getattr(model.config, f"{side}_vocab_size"), getattr(tokenizers, side).vocab_size
        if symbols != rows:
            raise InputError(
                f"the {side} vocabulary has {symbols:,} symbols, including special ones, but the embedding of "
                f"{checkpoint} has {rows:,} rows: it belongs to another model"
            )
