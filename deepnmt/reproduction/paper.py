"""Every table and figure of the paper, with its numbers (learning deep transformers, Wang et al. 2019)."""

from deepnmt.reproduction.experiment import Arm, Claim, Experiment

FAILED = "failed"


def _layers(depth: int) -> tuple[str, ...]:
    return (f"model.encoder.num_layers={depth}",)


def _depths(shallow: str, deep: str, line: str, paper: dict[int, float], small: tuple[int, ...]) -> tuple[Arm, ...]:
    """One arm a depth: the paper's depths in full, others in small. Where both have it, it is one arm.

    Six layers have the base setting in the paper; in small there is one setting for all.
    """
    arms = []
    for depth in sorted({*paper, *small}):
        only = "" if depth in paper and depth in small else "full" if depth in paper else "small"
        numbers = {"bleu": paper[depth]} if depth in paper else {}
        arms.append(
            Arm(
                f"{line} {depth}L",
                shallow if depth == 6 else deep,
                overrides=_layers(depth),
                depth=depth,
                line=line,
                paper=numbers,
                only=only,  # type: ignore[arg-type]
            )
        )
    return tuple(arms)


SMALL_DEPTHS = (6, 12, 18, 24, 30)

TABLE1 = Experiment(
    title="Table 1: English-German",
    about="Post-norm and pre-norm, shallow and deep, with and without DLCL.",
    arms=(
        Arm("post Base", "en-de-post-base", group="post-norm", paper={"parameters": 62, "bleu": 27.5}),
        Arm("post Big", "en-de-post-big", group="post-norm", paper={"parameters": 211, "bleu": 28.8}),
        Arm("post 20L", "en-de-post-20l", group="post-norm", paper={"parameters": 106, "bleu": FAILED}),
        Arm("post DLCL Base", "en-de-post-dlcl-base", group="post-norm", paper={"parameters": 62, "bleu": 27.6}),
        Arm("post DLCL 25L", "en-de-post-dlcl-25l", group="post-norm", paper={"parameters": 121, "bleu": 29.2}),
        Arm("pre Base", "en-de-pre-base", group="pre-norm", paper={"parameters": 62, "bleu": 27.1}),
        Arm("pre Big", "en-de-pre-big", group="pre-norm", paper={"parameters": 211, "bleu": 28.7}),
        Arm("pre 20L", "en-de-pre-20l", group="pre-norm", paper={"parameters": 106, "bleu": 28.9}),
        Arm("pre DLCL Base", "en-de-pre-dlcl-base", group="pre-norm", paper={"parameters": 62, "bleu": 27.3}),
        Arm("pre DLCL 30L", "en-de-pre-dlcl-30l", group="pre-norm", paper={"parameters": 137, "bleu": 29.3}),
    ),
    claims=(
        Claim(fails="post 20L"),
        Claim("post DLCL 25L", "post Base"),
        Claim("pre 20L", "pre Base"),
        Claim("pre DLCL 30L", "pre 20L"),
        Claim("pre DLCL 30L", "pre Big"),
        Claim("pre DLCL 30L", "pre Base"),
    ),
)

TABLE2 = Experiment(
    title="Table 2: connections at 16 layers",
    about="Transparent attention (Bapna et al. 2018), the plain Transformer, DLCL; fusion, dense and average beside.",
    arms=(
        Arm("post transparent", "en-de-post-transparent-16l", group="post-norm", paper={"bleu": 28.0}),
        Arm("post Transformer", "en-de-post-16l", group="post-norm", paper={"bleu": FAILED}),
        Arm("post DLCL", "en-de-post-dlcl-16l", group="post-norm", paper={"bleu": 28.4}),
        Arm("pre Transformer", "en-de-pre-16l", group="pre-norm", paper={"bleu": 28.0}),
        Arm("pre DLCL", "en-de-pre-dlcl-16l", group="pre-norm", paper={"bleu": 28.2}),
        Arm("pre transparent", "en-de-pre-transparent-16l", group="pre-norm, not in the paper"),
        Arm("pre fusion", "en-de-pre-fusion-16l", group="pre-norm, not in the paper"),
        Arm("pre dense", "en-de-pre-dense-16l", group="pre-norm, not in the paper"),
        Arm("pre average", "en-de-pre-average-16l", group="pre-norm, not in the paper"),
    ),
    claims=(
        Claim(fails="post Transformer"),
        Claim("post DLCL", "post transparent"),
        Claim("pre DLCL", "pre Transformer"),
    ),
)

TABLE3 = Experiment(
    title="Table 3: NIST Chinese-English",
    about="Separate vocabularies; case-insensitive tokenised BLEU, the mean of the test sets.",
    metric="multi_bleu_lower",
    arms=(
        Arm("Base", "zh-en-small-pre-base", paper={"parameters": 84, "bleu": 49.72}),
        Arm("Big", "zh-en-small-pre-big", paper={"parameters": 257, "bleu": 51.66}),
        Arm("25L", "zh-en-small-pre-25l", paper={"parameters": 144, "bleu": 51.68}),
        Arm("DLCL Base", "zh-en-small-pre-dlcl-base", paper={"parameters": 84, "bleu": 50.53}),
        Arm("DLCL 25L", "zh-en-small-pre-dlcl-25l", paper={"parameters": 144, "bleu": 52.11}),
    ),
    claims=(Claim("DLCL Base", "Base"), Claim("25L", "Base"), Claim("DLCL 25L", "25L"), Claim("DLCL 25L", "Big")),
)

TABLE4 = Experiment(
    title="Table 4: WMT18 Chinese-English with back-translation",
    about="Case-sensitive detokenised BLEU; the paper's figure is the mean of newstest2017 and newstest2018.",
    metric="bleu",
    arms=(
        Arm("Base", "zh-en-large-pre-base", paper={"parameters": 102.1, "bleu": 25.85}),
        Arm("Big", "zh-en-large-pre-big", paper={"parameters": 292.4, "bleu": 26.7}),
        Arm("DLCL 25L", "zh-en-large-pre-dlcl-25l", paper={"parameters": 161.5, "bleu": 26.9}),
        Arm("DLCL 30L", "zh-en-large-pre-dlcl-30l", paper={"parameters": 177.2, "bleu": 27.15}),
    ),
    claims=(Claim("DLCL 25L", "Big"), Claim("DLCL 30L", "DLCL 25L")),
)

TABLE5 = Experiment(
    title="Table 5: decoder depth",
    about="Pre-norm Base with a decoder of 4, 6 and 8 layers (two fewer in small): BLEU and generation speed.",
    measures=("scores", "speed"),
    arms=(
        Arm(
            "decoder 4L",
            "en-de-pre-base",
            overrides=("model.decoder.num_layers=4",),
            paper={"bleu": 27.12, "speed": 3088.3},
        ),
        Arm("decoder 6L", "en-de-pre-base", paper={"bleu": 27.33, "speed": 2589.2}),
        Arm(
            "decoder 8L",
            "en-de-pre-base",
            overrides=("model.decoder.num_layers=8",),
            paper={"bleu": 27.42, "speed": 2109.6},
        ),
    ),
    claims=(Claim("decoder 6L", "decoder 4L"), Claim("decoder 8L", "decoder 6L")),
)

TABLE6 = Experiment(
    title="Table 6: ablations",
    about="DLCL-20L without its LayerNorm and with fixed weights; a big encoder; a deep and wide model.",
    arms=(
        Arm("DLCL 20L", "en-de-pre-dlcl-20l", group="DLCL", paper={"bleu": 28.80}),
        Arm("- layer norm", "en-de-pre-dlcl-20l-no-norm", group="DLCL", paper={"bleu": 28.67}),
        Arm("- learned (1)", "en-de-pre-dlcl-20l-fixed-one", group="DLCL", paper={"bleu": 28.22}),
        Arm("- learned (1/N)", "en-de-pre-dlcl-20l-fixed-average", group="DLCL", paper={"bleu": 28.51}),
        Arm(
            "- learned (1/N) - layer norm",
            "en-de-pre-dlcl-20l-fixed-average-no-norm",
            group="DLCL",
            paper={"bleu": 28.23},
        ),
        Arm("Base", "en-de-pre-base", group="Base", paper={"bleu": 27.11}),
        Arm("+ big encoder", "en-de-pre-base-big-encoder", group="Base", paper={"bleu": 27.59}),
        Arm("Big", "en-de-pre-big", group="Big", paper={"bleu": 28.72}),
        Arm("+ 12L encoder (DLCL)", "en-de-pre-big-dlcl-12l", group="Big", paper={"bleu": 29.17}),
    ),
    claims=(
        Claim("DLCL 20L", "- layer norm"),
        Claim("DLCL 20L", "- learned (1)"),
        Claim("DLCL 20L", "- learned (1/N)"),
        Claim("- learned (1/N)", "- learned (1)"),
        Claim("- learned (1/N)", "- learned (1/N) - layer norm"),
        Claim("+ big encoder", "Base"),
        Claim("+ 12L encoder (DLCL)", "Big"),
        Claim("DLCL 20L", "Base"),
    ),
)

TABLE7 = Experiment(
    title="Table 7: settings for shallow and deep models",
    about="Validation perplexity with the base setting, and with the deep one: twice the batch, half the updates, a "
    "higher rate, a longer warm-up. * in the paper is `failed` here.",
    shows_perplexity=True,
    shows_gradients=True,
    arms=(
        Arm("post, base", "en-de-post-base", setting="base", group="post-norm", paper={"ppl": 4.85}),
        Arm("post, deep", "en-de-post-base-deep-setting", group="post-norm", paper={"ppl": FAILED}),
        Arm("post-20L, base", "en-de-post-20l-base-setting", setting="base", group="post-norm", paper={"ppl": FAILED}),
        Arm("post-20L, deep", "en-de-post-20l", group="post-norm", paper={"ppl": FAILED}),
        Arm("pre, base", "en-de-pre-base", setting="base", group="pre-norm", paper={"ppl": 4.88}),
        Arm("pre, deep", "en-de-pre-base-deep-setting", group="pre-norm", paper={"ppl": 4.86}),
        Arm("pre-20L, base", "en-de-pre-20l-base-setting", setting="base", group="pre-norm", paper={"ppl": 4.68}),
        Arm("pre-20L, deep", "en-de-pre-20l", group="pre-norm", paper={"ppl": 4.60}),
    ),
    claims=(
        Claim(fails="post, deep"),
        Claim(fails="post-20L, base"),
        Claim(fails="post-20L, deep"),
        Claim("pre-20L, deep", "pre, deep"),
        Claim("pre-20L, deep", "pre-20L, base"),
    ),
)

FIGURE4 = Experiment(
    title="Figure 4a: encoder depth, English-German",
    about="Pre-norm Transformer and DLCL against the depth of the encoder.",
    plot="score",
    arms=(
        *_depths(
            "en-de-pre-base",
            "en-de-pre-20l",
            "Transformer",
            {6: 27.10, 16: 28.00, 20: 28.90, 25: 28.78, 30: 28.67, 35: 28.30},
            SMALL_DEPTHS,
        ),
        *_depths(
            "en-de-pre-dlcl-base",
            "en-de-pre-dlcl-20l",
            "DLCL",
            {6: 27.30, 16: 28.20, 20: 28.80, 25: 29.10, 30: 29.30, 35: 28.85},
            SMALL_DEPTHS,
        ),
    ),
    claims=(
        Claim("Transformer 18L", "Transformer 6L"),
        Claim("DLCL 6L", "Transformer 6L"),
        Claim("DLCL 30L", "Transformer 30L"),
        Claim("DLCL 30L", "DLCL 6L"),
    ),
)

FIGURE4_ZH_EN = Experiment(
    title="Figure 4b: encoder depth, Chinese-English",
    about="Pre-norm Transformer and DLCL against the depth of the encoder.",
    plot="score",
    metric="multi_bleu_lower",
    arms=(
        *_depths(
            "zh-en-small-pre-base",
            "zh-en-small-pre-25l",
            "Transformer",
            {6: 49.7, 16: 51.37, 20: 51.66, 25: 51.68, 30: 51.7},
            SMALL_DEPTHS,
        ),
        *_depths(
            "zh-en-small-pre-dlcl-base",
            "zh-en-small-pre-dlcl-25l",
            "DLCL",
            {6: 50.53, 16: 51.45, 20: 51.68, 25: 52.11, 30: 52.04},
            SMALL_DEPTHS,
        ),
    ),
    claims=(Claim("DLCL 6L", "Transformer 6L"), Claim("DLCL 30L", "Transformer 30L")),
)

FIGURE5 = Experiment(
    title="Figure 5: generation speed against encoder depth",
    about="Target tokens a second, batch 32, beam 4, with the paper's sizes at every scale: random weights of a forced "
    "length do the same work. The paper's machine was a Titan V.",
    measures=("speed",),
    plot="speed",
    trains=False,
    arms=(
        Arm("Base 6L", "en-de-pre-base", paper={"speed": 2589.2}, keeps_shape=True),
        Arm("Big 6L", "en-de-pre-big", paper={"speed": 1896}, keeps_shape=True),
        *(
            Arm(
                f"DLCL {depth}L",
                "en-de-pre-dlcl-20l",
                overrides=_layers(depth),
                depth=depth,
                line="DLCL",
                paper={"speed": speed},
                keeps_shape=True,
            )
            for depth, speed in {6: 2502.2, 16: 2303, 20: 2237.37, 25: 2186, 30: 2109}.items()
        ),
    ),
    claims=(Claim("DLCL 30L", "Big 6L"), Claim("Base 6L", "DLCL 30L")),
)

FIGURE6 = Experiment(
    title="Figure 6: learned weights",
    about="The connection weights that pre-norm DLCL-30L learns.",
    measures=("scores", "weights"),
    arms=(Arm("pre DLCL 30L", "en-de-pre-dlcl-30l", paper={"bleu": 29.3}),),
)

TRAINABILITY = Experiment(
    title="Section 5.1, appendix A: which deep models train",
    about="Post-norm, pre-norm and post-norm DLCL against depth, all with one setting, and the gradient of every "
    "encoder layer while they train.",
    shows_gradients=True,
    shows_perplexity=True,
    plot="score",
    arms=tuple(
        Arm(
            f"{line} {depth}L",
            recipe,
            overrides=_layers(depth),
            depth=depth,
            line=line,
            paper={"bleu": FAILED} if line == "post" and depth >= 16 else {},
        )
        for recipe, line in (("en-de-post-20l", "post"), ("en-de-pre-20l", "pre"), ("en-de-post-dlcl-25l", "post DLCL"))
        for depth in SMALL_DEPTHS
    ),
    claims=(
        Claim(fails="post 18L"),
        Claim(fails="post 24L"),
        Claim(fails="post 30L"),
        Claim("pre 24L", "post 24L"),
        Claim("post DLCL 24L", "post 24L"),
    ),
)

HEADLINE = Experiment(
    title="The headline: deep and thin against wide",
    about="Base, Big and DLCL-30L, each trained for the same time on the same device, with the paper's own rates.",
    measures=("scores", "speed", "weights"),
    equal="time",
    own_setting=True,
    arms=(
        Arm("Base", "en-de-pre-base", paper={"parameters": 62, "bleu": 27.1, "speed": 2589.2}),
        Arm("Big", "en-de-pre-big", paper={"parameters": 211, "bleu": 28.7, "speed": 1896}),
        Arm("DLCL 30L", "en-de-pre-dlcl-30l", paper={"parameters": 137, "bleu": 29.3, "speed": 2109}),
    ),
    claims=(Claim("DLCL 30L", "Big"), Claim("Big", "Base")),
)

_TINY_TRAINING = (
    "model.dropout=0.3",
    "model.attention_dropout=0.0",
    "model.ffn_dropout=0.0",
    "training.lr=5e-3",
    "training.betas=[0.9, 0.98]",
)


def _tiny(layers: int, dim: int, norm: str, connection: str) -> tuple[str, ...]:
    shapes = []
    for stack, depth in (("encoder", layers), ("decoder", 4)):
        values = {"num_layers": depth, "dim": dim, "ffn_dim": 2 * dim, "num_heads": 4, "connection.kind": connection}
        shapes += [f"model.{stack}.{name}={value}" for name, value in values.items()]
    return (*shapes, f'model.norm="{norm}"', *_TINY_TRAINING)


MULTI30K_TINY = Experiment(
    title="Multi30k: Transformer-Tiny, and as many parameters in a deep narrow model",
    about="The published figure is 41.02 BLEU on test2016, lower-cased, normalised and tokenised (Wu et al. 2021, 4+4 "
    "layers, d 128, ffn 256, 2.6M parameters, dropout .3, rate 5e-3). Every arm has those settings.",
    metric="multi_bleu_lower",
    shows_perplexity=True,
    own_setting=True,
    arms=(
        Arm(
            "post 4+4, d 128",
            "en-de-post-base",
            overrides=_tiny(4, 128, "post", "residual"),
            keeps_shape=True,
            paper={"parameters": 2.6, "bleu": 41.02},
        ),
        Arm("pre 4+4, d 128", "en-de-post-base", overrides=_tiny(4, 128, "pre", "residual"), keeps_shape=True),
        Arm("DLCL 4+4, d 128", "en-de-post-base", overrides=_tiny(4, 128, "pre", "dlcl"), keeps_shape=True),
        Arm("pre 18+4, d 96", "en-de-post-base", overrides=_tiny(18, 96, "pre", "residual"), keeps_shape=True),
        Arm("DLCL 18+4, d 96", "en-de-post-base", overrides=_tiny(18, 96, "pre", "dlcl"), keeps_shape=True),
    ),
    claims=(Claim("DLCL 18+4, d 96", "post 4+4, d 128"),),
)

EXPERIMENTS: dict[str, Experiment] = {
    "table1": TABLE1,
    "table2": TABLE2,
    "table3": TABLE3,
    "table4": TABLE4,
    "table5": TABLE5,
    "table6": TABLE6,
    "table7": TABLE7,
    "figure4": FIGURE4,
    "figure4-zh-en": FIGURE4_ZH_EN,
    "figure5": FIGURE5,
    "figure6": FIGURE6,
    "trainability": TRAINABILITY,
    "headline": HEADLINE,
    "multi30k-tiny": MULTI30K_TINY,
}
