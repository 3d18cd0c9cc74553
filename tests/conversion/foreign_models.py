"""Tiny models of other toolkits, written as those toolkits write them, and text of many scripts."""

import json
import random
import unicodedata
from functools import cache
from pathlib import Path

import sentencepiece
import torch

TEXT = "the small house stands by a river and an old tree grows café naïve straße Москва 北京 привет γεια שלום مرحبا"
WORDS = TEXT.split()
SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}


@cache
def mixed_lines(count: int, seed: int = 1) -> list[str]:
    """Lines of words and of characters from all over Unicode; spaces of all kinds among them."""
    draw = random.Random(seed)
    characters = (chr(number) for number in range(1, 0x2FA20) if number not in (10, 13))
    usable = [one for one in characters if unicodedata.category(one) not in ("Cs", "Cn", "Co")]
    return [
        "".join(
            draw.choice(WORDS) + draw.choice([" ", "  ", "", "\t", "\u00a0", "\u3000", " - ", "..."])
            if draw.random() < 0.7
            else "".join(draw.choices(usable, k=draw.randint(1, 4)))
            for _ in range(draw.randint(0, 12))
        )
        for _ in range(count)
    ]


@cache
def sentencepiece_model(seed: int, model_type: str = "unigram", normalization: str = "nmt_nfkc") -> bytes:
    import io

    draw = random.Random(seed)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(300)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=model_type,
        vocab_size=110,
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name=normalization,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(n) for n in range(3, processor.get_piece_size())]


def disturbed(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Nothing at a special value, and logits that differ clearly from each other."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:
                parameter.requires_grad_(False)
            else:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def trained(model: torch.nn.Module, first: int, steps: int) -> torch.nn.Module:
    """The model after it has begun to learn to copy: its sentences end by themselves."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(steps):
        length = int(torch.randint(2, 7, (1,), generator=generator))
        ids = torch.randint(first, first + 12, (24, length), generator=generator)
        ids = torch.cat([ids, torch.full((24, 1), config.eos_token_id)], 1)
        start = torch.full((24, 1), config.decoder_start_token_id)
        logits = model(input_ids=ids, decoder_input_ids=torch.cat([start, ids[:, :-1]], 1), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def write_marian(
    folder: Path, steps: int = 0, *, separate: bool = False, tags: tuple[str, ...] = (), **settings: object
) -> Path:
    """A MarianMTModel and its tokeniser, as an OPUS-MT folder has them."""
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    folder.mkdir()
    models = {"source": sentencepiece_model(1), "target": sentencepiece_model(2)}
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    listed = [pieces_of(models["source"]), pieces_of(models["target"])]
    if not separate:
        listed = [[*dict.fromkeys(listed[0][:-3] + listed[1][:-2])]] * 2  # some pieces are unknown
    vocabularies = [
        {symbol: n for n, symbol in enumerate(["</s>", "<unk>", *tags, *pieces, "<pad>"])} for pieces in listed
    ]
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=True):
        (folder / name).write_text(json.dumps(vocabulary), encoding="utf-8")
    pad = len(vocabularies[0]) - 1
    config = MarianConfig(
        vocab_size=len(vocabularies[0]),
        decoder_vocab_size=len(vocabularies[1]),
        **{"activation_function": "swish", "scale_embedding": True, **SIZES, **settings},
        share_encoder_decoder_embeddings=not separate,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = disturbed(MarianMTModel(config))
    with torch.no_grad():
        model.final_logits_bias.normal_()
    trained(model, 5, steps).save_pretrained(folder)
    tokenizer = MarianTokenizer(
        source_spm=str(folder / "source.spm"),
        target_spm=str(folder / "target.spm"),
        vocab=str(folder / "vocab.json"),
        target_vocab_file=str(folder / "target_vocab.json") if separate else None,
        separate_vocabs=separate,
        source_lang="en",
        target_lang="de",
    )
    tokenizer.save_pretrained(folder)
    return folder


def write_m2m100(folder: Path, steps: int = 0, nllb: bool = False) -> Path:
    """M2M100; or NLLB, whose pieces SentencePiece numbers."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer, NllbTokenizer

    folder.mkdir()
    model = sentencepiece_model(3, "bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    listed = pieces_of(model)
    vocabulary = {symbol: n for n, symbol in enumerate(["<s>", "<pad>", "</s>", "<unk>", *listed])}
    if nllb:
        tags = ["eng_Latn", "deu_Latn", "jpn_Jpan"]
        tokenizer = NllbTokenizer.from_pretrained(folder, additional_special_tokens=tags)
    else:
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        files = str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model")
        tokenizer = M2M100Tokenizer(*files)
        tags = list(tokenizer.lang_token_to_id)
    tokenizer.save_pretrained(folder)
    rows = len(vocabulary) + len(tags) + 3  # some of them without a symbol
    config = M2M100Config(vocab_size=rows, max_position_embeddings=64, **SIZES)
    torch.manual_seed(0)
    trained(disturbed(M2M100ForConditionalGeneration(config)), 8, steps).save_pretrained(folder)
    return folder


def write_fsmt(folder: Path, steps: int = 0) -> Path:
    from transformers import FSMTConfig, FSMTForConditionalGeneration

    folder.mkdir()
    merges = ["t h", "th e</w>", "a n", "an d</w>", "h o", "u s", "us e</w>", "ho use</w>", "r i", "в е", "& apos;</w>"]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges), encoding="utf-8")
    letters = sorted(set("".join(WORDS)) | set(".,-'&;@"))
    symbols = [*letters, *(f"{letter}</w>" for letter in letters), *(m.replace(" ", "") for m in merges)]
    sizes = {}
    for side, listed in (("src", symbols), ("tgt", symbols[5:])):
        vocabulary = {s: n for n, s in enumerate(["<s>", "<pad>", "</s>", "<unk>", *listed])}
        (folder / f"vocab-{side}.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        sizes[f"{side}_vocab_size"] = len(vocabulary)
    told = {"langs": ["en", "de"], "do_lower_case": False, "tokenizer_class": "FSMTTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    config = FSMTConfig(langs=["en", "de"], max_position_embeddings=64, **sizes, **SIZES)
    torch.manual_seed(0)
    trained(disturbed(FSMTForConditionalGeneration(config)), 8, steps).save_pretrained(folder)
    return folder
