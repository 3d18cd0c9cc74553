"""Makes the checkpoints of this folder with OpenNMT-py's own code: `python make_checkpoints.py` where it is installed.

With version 3.5.1 it writes v3-*.pt.gz, with version 2.3.0 (and torchtext 0.5.0) v2.pt.gz: models with random weights,
stored as the trainer stores them, but for the table of sinusoids, which is cut to a few rows, and compressed.
expected.json has the logits of each for pairs of sentences; those of version 2 are log probabilities. The symbols are
pieces of the SentencePiece models in the folder `marian` beside this one.
"""

import gzip
import json
from pathlib import Path

import onmt
import sentencepiece
import torch
from onmt import opts
from onmt.model_builder import build_base_model
from onmt.models.model_saver import ModelSaver
from onmt.utils.parse import ArgumentParser

HERE = Path(__file__).parent
PAIRS = [("green tree 7 house", "neerg TREE"), ("house", "DOG 7 esuoh kcab")]
SIZES = ["-enc_layers", 2, "-dec_layers", 1, "-transformer_ff", 12, "-heads", 2, "-word_vec_size", 8]
TYPES = ["-encoder_type", "transformer", "-decoder_type", "transformer", "-dropout", 0.2, "-attention_dropout", 0.3]
VARIANTS = {
    "v2": "",
    "v3-sinusoidal": "-position_encoding_type SinusoidalConcat -share_decoder_embeddings",
    "v3-relative": "-max_relative_positions 2 -pos_ffn_activation_fn gelu -add_ffnbias -share_vocab -share_embeddings",
    "v3-rotary": "-max_relative_positions -1 -pos_ffn_activation_fn silu -layer_norm rms -norm_eps 0.01 -num_kv 1 "
    "-add_qkvbias -rotary_interleave",
}


def pieces(side):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE.parent / "marian" / f"{side}.spm"))
    return processor, [processor.id_to_piece(number) for number in range(3, 35)]


def options(arguments):
    parser = ArgumentParser()
    opts.train_opts(parser)
    hidden = "-hidden_size" if onmt.__version__ > "3" else "-rnn_size"
    paths = ["-data", "{}", "-src_vocab", "vocabulary", "-save_model", "model"]
    absolute = [] if "_positions" in arguments else ["-position_encoding"]
    given = [*paths, *SIZES, hidden, 8, *TYPES, *absolute, *arguments.split()]
    found, _ = parser.parse_known_args(list(map(str, given)))
    ArgumentParser.update_model_opts(found)
    ArgumentParser.validate_model_opts(found)
    found.data_task = found.model_task
    return found


def vocabularies(opt):
    sides = {side: pieces(name)[1] for side, name in (("src", "source"), ("tgt", "target"))}
    for side, symbols in sides.items():
        Path(f"{side}.vocabulary").write_text("".join(f"{s}\t{90 - i}\n" for i, s in enumerate(symbols)), "utf-8")
    opt.src_vocab = "src.vocabulary"
    opt.tgt_vocab = "src.vocabulary" if getattr(opt, "share_vocab", False) else "tgt.vocabulary"
    if onmt.__version__ > "3":
        from onmt.inputters.inputter import build_vocab

        return build_vocab(opt, {"src": [], "tgt": []})
    from onmt.inputters.fields import build_dynamic_fields

    return build_dynamic_fields(opt)


def ids(vocabs, source, target):
    """The ids that OpenNMT-py's own reader of examples gives to two texts."""
    example = {"src": {"src": " ".join(source)}, "tgt": {"tgt": " ".join(target)}}
    if onmt.__version__ > "3":
        from onmt.inputters.text_utils import numericalize

        found = numericalize(vocabs, example)
        return found["src"]["src_ids"], found["tgt"]["tgt_ids"]
    source_ids, _ = vocabs["src"].process([vocabs["src"].preprocess(example["src"])])
    target_ids = vocabs["tgt"].process([vocabs["tgt"].preprocess(example["tgt"])])
    return source_ids.flatten().tolist(), target_ids.flatten().tolist()


@torch.no_grad()
def logits(model, source, target):
    lengths = torch.tensor([len(source)])
    if onmt.__version__ > "3":
        found, _ = model(torch.tensor(source)[None, :, None], torch.tensor(target)[None, :, None], lengths)
        return model.generator(found)[0]
    found, _ = model(torch.tensor(source)[:, None, None], torch.tensor(target)[:, None, None], lengths)
    return model.generator(found)[:, 0]  # log probabilities


def make(name, arguments):
    opt = options(arguments)
    vocabs = vocabularies(opt)
    torch.manual_seed(1)
    model = build_base_model(opt, vocabs) if onmt.__version__ > "3" else build_base_model(opt, vocabs, gpu=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.eval()
    expected = []
    joint = getattr(opt, "share_vocab", False)
    processors = pieces("source")[0], pieces("source" if joint else "target")[0]
    for texts in PAIRS:
        split = [processor.encode(text, out_type=str) for processor, text in zip(processors, texts, strict=True)]
        found = logits(model, *ids(vocabs, *split))
        rows = [[round(logit, 5) for logit in row] for row in found.tolist()]
        expected.append({"source": texts[0], "target": texts[1], "logits": rows})
    for side in (model.encoder, model.decoder):
        if hasattr(side.embeddings.make_embedding, "pe"):
            table = side.embeddings.make_embedding.pe
            table.pe = table.pe[:6].clone()
    optimizer = onmt.utils.optimizers.Optimizer.from_opt(model, opt)
    saver = ModelSaver(str(HERE / name), model, opt, vocabs, optimizer, -1)
    saver._save(0, model)
    stored = HERE / f"{name}_step_0.pt"
    (HERE / f"{name}.pt.gz").write_bytes(gzip.compress(stored.read_bytes(), mtime=0))
    stored.unlink()
    return expected


if __name__ == "__main__":
    path = HERE / "expected.json"
    expected = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for name, arguments in VARIANTS.items():
        if name[:2] == f"v{onmt.__version__[0]}":
            expected[name] = make(name, arguments)
    path.write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
