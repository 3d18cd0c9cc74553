"""`deepnmt train` and `average` as their users meet them: whole runs, kills, signals, refusals, torchrun, two hosts."""

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import small  # one thread, here as in the processes that are started: the number of threads decides the last bit
from processes import Process
from ranks import free_port
from safetensors.torch import load_file
from small import curves, logged, losses

import deepnmt
from deepnmt.cli import main
from deepnmt.decoding.translator import Translator
from deepnmt.errors import InputError
from deepnmt.evaluation.scores import quick_scores
from deepnmt.training.curves import read_log

ROOT = Path(__file__).parents[2]
WORDS = ["the", "a", "cat", "dog", "man", "house", "tree", "sees", "likes", "takes", "red", "green", "big", "and", "or"]
RECIPE = """
[model]
source_vocab_size = 10
target_vocab_size = 10
share_embeddings = true
[model.encoder]
num_layers = 2
dim = 16
ffn_dim = 32
num_heads = 2
connection = "dlcl"
[model.decoder]
num_layers = 1
dim = 16
ffn_dim = 32
num_heads = 2
[batching]
tokens_per_batch = 128
[training]
max_steps = 60
tokens_per_update = 256
lr = 5e-3
warmup_steps = 10
log_every = 5
validate_every = 30
save_every = 10
validation_lines = 5
[decoding]
beam = 2
length_penalty = 0.3
"""
assert small.torch.get_num_threads() == 1


def write_text(folder, name, pairs):
    chosen = random.Random(name)
    lines = [[chosen.choice(WORDS) for _ in range(chosen.randint(3, 8))] for _ in range(pairs)]
    (folder / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / f"{name}.de").write_text("".join(" ".join(word[::-1] for word in line[::-1]) + "\n" for line in lines))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a prepared dataset, a recipe, and a finished run."""
    folder = tmp_path_factory.mktemp("place")
    for name, pairs in (("train", 300), ("valid", 20)):
        write_text(folder, name, pairs)
    for kind in ("joint", "separate"):
        given = [
            "--source",
            "train.en",
            "--target",
            "train.de",
            "--valid-source",
            "valid.en",
            "--valid-target",
            "valid.de",
        ]
        files = [str(folder / name) if "." in name else name for name in given]
        options = ["--source-lang", "en", "--target-lang", "de", "--vocab-size", "340", "--min-frequency", "1"]
        assert main(["prepare", *files, *options, f"--{kind}", "--out", str(folder / kind)]) == 0
    (folder / "tiny.toml").write_text(RECIPE)
    assert main(arguments(folder, "run")) == 0
    return folder


def arguments(place, run, *more, data="joint"):
    return ["train", str(place / "tiny.toml"), *more, "--data", str(place / data), "--out", str(place / run)]


def start_train(place, run, *more):
    return Process(main, arguments(place, run, *more))


def wait_for_step(run, step, process):
    """Until the log of the run has come as far as a step."""
    for _ in range(6000):
        if (run / "log.jsonl").exists() and any(line["step"] >= step for line in read_log(run)):
            return
        assert process.status is None, process.output
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached")


def kill_after(place, run, step, *more):
    with start_train(place, run, *more) as process:
        wait_for_step(place / run, step, process)


def weights(run, name="checkpoints/step-00000060"):
    return {key: value.tolist() for key, value in load_file(run / name / "model.safetensors").items()}


def test_finished_run_leaves_a_model_that_translates(place):
    run = place / "run"
    translator = Translator(run / "model")
    assert len(translator.translate(["the cat sees a dog", ""], beam=2)) == 2
    for folder in (run / "model", next((run / "checkpoints").iterdir())):
        defaults = Translator(folder).defaults
        assert (defaults["beam"], defaults["length_penalty"]) == (2, 0.3), "as the recipe decodes"
    meta = json.loads((run / "model" / "meta.json").read_text())
    assert meta["averaged"] == [json.loads((run / "best.json").read_text())["checkpoint"].partition("/")[2]]
    validations = [line for line in read_log(run) if line["kind"] == "validation"]
    assert [line["step"] for line in validations] == [30, 60]
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in validations[0]["signatures"]["bleu"]
    assert validations[0]["signatures"]["bleu"].endswith("|beam:1")
    assert {"bleu", "chrf", "loss", "nll", "ppl"} < validations[0].keys()
    assert len(validations[0]["samples"]) == 3
    assert list((run / "tensorboard").iterdir())


def test_logged_scores_are_those_of_the_checkpoint(place):
    """And a checkpoint translates as it is."""
    translator = Translator(place / "run" / "checkpoints" / "step-00000060")
    sources, references = ((place / f"valid.{side}").read_text().splitlines()[:5] for side in ("en", "de"))
    scores = quick_scores(translator.translate(sources, beam=1), references, "de")
    logged = next(line for line in read_log(place / "run") if line["kind"] == "validation" and line["step"] == 60)
    assert (logged["bleu"], logged["chrf"]) == (scores["bleu"].value, scores["chrf"].value)


def test_run_is_refused_twice_and_a_finished_one_resumes_to_its_end(place, capsys):
    assert main(arguments(place, "run")) == 2
    assert "already contains a run; resume it with --resume" in capsys.readouterr().err
    before = curves(place / "run")
    assert main([*arguments(place, "run"), "--resume"]) == 0
    assert "all 60 steps are done" in capsys.readouterr().err
    assert curves(place / "run") == before
    assert main(["train", "--resume", "--out", str(place / "nothing")]) == 2
    assert "--data is missing, and" in capsys.readouterr().err


def test_a_model_is_trained_further(place):
    """From its own weights, with a new optimiser; also when killed before its first checkpoint and just resumed."""
    late = [f"training.{setting}" for setting in ("max_steps=20", "save_every=60", "save_epochs=false")]
    model = ["--from", str(place / "run" / "model"), "model.dropout=0.2", *late, "training.tensorboard=false"]
    assert main(arguments(place, "further", *model)) == 0
    first, last = read_log(place / "run")[0]["loss"], read_log(place / "run")[-1]["loss"]
    assert abs(read_log(place / "further")[0]["loss"] - last) < 0.3 * (first - last)

    kill_after(place, "further-killed", 5, *model)
    assert not (place / "further-killed" / "checkpoints").exists()
    assert main(["train", "--resume", "--out", str(place / "further-killed")]) == 0
    assert curves(place / "further-killed") == curves(place / "further")
    assert weights(place / "further-killed", "model") == weights(place / "further", "model")


def test_a_model_that_does_not_fit_is_not_trained_further(place, capsys, unchanged):
    model = place / "run" / "model"
    for more, data, message in [
        (["model.encoder.num_layers=3"], "joint", f"{model} has model.encoder.num_layers = 2, but the recipe has 3"),
        (["model.encoder.connection=residual"], "joint", "connection.kind = dlcl, but the recipe has residual"),
        (
            ["model.share_embeddings=false"],
            "separate",
            f"has other subwords than {model}; use `deepnmt",
        ),
    ]:
        with unchanged(place):
            assert main([*arguments(place, "unfit", *more, data=data), "--from", str(model)]) == 2
        assert message in capsys.readouterr().err
    with unchanged(place):
        assert main([*arguments(place, "unfit"), "--from", str(place / "joint")]) == 2
    assert "is not a MODEL folder" in capsys.readouterr().err
    with unchanged(place):
        assert main([*arguments(place, "run", "--resume"), "--from", str(model)]) == 2
    assert "was started with new weights, not with" in capsys.readouterr().err


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_save_and_end_with_one_sentence(place, number, status):
    run = f"signal{number}"
    endless = ["training.max_steps=100000", "training.save_every=100000", "training.log_every=1"]
    with start_train(place, run, *endless) as process:
        wait_for_step(place / run, 12, process)
        process.send(number)
        assert process.wait() == status
        last = process.output.strip().splitlines()[-1]
    assert last.startswith("deepnmt: stopped after step ") and "from which the run can be resumed" in last
    step = int(last.split()[4].replace(",", ""))
    newest = place / run / json.loads((place / run / "last.json").read_text())["checkpoint"]  # of the step or its epoch
    assert json.loads((newest / "state.json").read_text())["run"]["step"] == step
    assert (newest / "manifest.json").exists()


@pytest.mark.parametrize(
    "more, data, message",
    [
        (["model.norms=pre"], "joint", "unknown setting model.norms; did you mean norm?"),
        (["training.lr=-1"], "joint", "training: lr = -1.0 must be above 0"),
        ([], "nowhere", "is not a dataset: there is no such folder"),
        ([], "separate", "shares embeddings, but"),
        (["training.wandb_project=x"], "joint", "wandb is not installed"),
        (["batching.max_length=1"], "joint", "nothing to train on"),
        (["--tokens-per-update", "0"], "joint", "training: --tokens-per-update 0 must be at least 1"),
    ],
)
def test_refusals_leave_nothing_behind(more, data, message, place, capsys, unchanged):
    with unchanged(place):
        assert main(arguments(place, "refused", *more, data=data)) == 2
    told = capsys.readouterr().err
    assert message in told and told.startswith("deepnmt: ") and told.count("\n") == 1


def test_a_model_that_does_not_fit_in_memory_is_one_sentence(place, capsys, unchanged):
    with unchanged(place):
        assert main(arguments(place, "huge", "model.encoder.ffn_dim=100000000000000")) == 1
    told = capsys.readouterr().err
    assert (
        told.startswith("deepnmt: out of memory: lower ") and "train a smaller model" in told and told.count("\n") == 1
    )


def test_tags_that_a_model_does_not_know_are_named(place, tmp_path, capsys):
    model, data = place / "run" / "model", shutil.copytree(place / "joint", tmp_path / "tagged")
    for path in data.glob("tokenizer.*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace('"tags": []', '"tags": ["<bt>"]'), encoding="utf-8")
    assert main([*arguments(place, "unfit", data=data), "--from", str(model)]) == 2
    assert (
        f"{data} has tags that {model} does not know (<bt>); prepare the text without them" in capsys.readouterr().err
    )


def test_a_damaged_dataset_is_refused(place, tmp_path, capsys):
    shutil.copytree(place / "joint", tmp_path / "damaged")
    (ids,) = (tmp_path / "damaged").glob("train.*.source.ids")
    ids.write_bytes(ids.read_bytes()[::-1])
    assert main(arguments(place, "refused", data=tmp_path / "damaged")) == 2
    assert f"{ids} is damaged: its checksum differs; prepare the dataset again" in capsys.readouterr().err
    assert not (place / "refused").exists()


def test_changed_recipe_and_other_data_are_refused_by_name(place, capsys, unchanged):
    with unchanged(place):
        assert main([*arguments(place, "run", "training.label_smoothing=0.2"), "--resume"]) == 2
    assert "was started with training.label_smoothing = 0.1, but now" in capsys.readouterr().err
    with unchanged(place):
        assert main([*arguments(place, "run", "model.share_embeddings=false", data="separate"), "--resume"]) == 2
    assert "has other subwords than" in capsys.readouterr().err


def test_a_recipe_may_have_an_equals_sign_in_its_path(place, capsys):
    shutil.copytree(place / "joint", place / "lr=1")
    recipe = shutil.copy(place / "tiny.toml", place / "lr=1" / "tiny.toml")
    words = [str(recipe), "training.max_steps=2", "training.tensorboard=false", "--data", str(place / "lr=1")]
    assert main(["train", *words, "--out", str(place / "equal")]) == 0
    shutil.rmtree(place / "lr=1")
    assert main(["train", "--resume", "--out", str(place / "equal")]) == 2
    told = capsys.readouterr().err
    assert (
        f"{place / 'lr=1'}, the dataset of {place / 'equal'}, does not exist; pass its new location as --data" in told
    )
    assert main(["train", "--resume", "--data", str(place / "joint"), "--out", str(place / "equal")]) == 0


def test_separate_vocabularies_train_without_sharing(place, capsys):
    more = ["model.share_embeddings=false", "training.max_steps=3", "training.tensorboard=false"]
    assert main(arguments(place, "separated", *more, data="separate")) == 0
    assert "model is the best checkpoint" in capsys.readouterr().err


def test_averaging_a_run(place, capsys, unchanged):
    run = str(place / "run")
    assert main(["average", run, "--last", "2", "--out", str(place / "averaged")]) == 0
    assert "average of epoch-0000" in capsys.readouterr().err
    Translator(place / "averaged").translate(["a cat"], beam=1)
    for given, message in [
        ([run, "--last", "2", "--out", str(place / "averaged")], "already exists"),
        ([run, "--last", "99", "--out", str(place / "more")], "of 99 epoch checkpoints"),
        ([run, "--last", "0", "--out", str(place / "more")], "at least 1"),
        ([run, "--steps", "7", "--out", str(place / "more")], "has no checkpoint of step 7"),
        ([run, "--best-on-valid", "--last", "1", "--data", "nowhere", "--out", str(place / "more")], "not a dataset"),
        ([str(place), "--out", str(place / "more")], "is not a RUN folder"),
    ]:
        with unchanged(place):
            assert main(["average", *given]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("opinions", "best"), [([3.0, 1.0], 1), ([1.0, 3.0], 2)])
def test_average_by_validation_bleu_tries_every_window(place, capsys, monkeypatch, opinions, best):
    decoded, values = [], iter(opinions)
    scored = "deepnmt.api.average.quick_scores"
    monkeypatch.setattr(scored, lambda *_: {"bleu": SimpleNamespace(value=next(values))})
    translate = Translator.translate
    monkeypatch.setattr(Translator, "translate", lambda self, *a, **s: decoded.append(s) or translate(self, *a, **s))
    given = ["average", str(place / "run"), "--last", "2", "--of", "steps", "--best-on-valid"]
    assert main([*given, "--out", str(place / f"chosen-{best}")]) == 0
    told = capsys.readouterr().err
    assert told.count("average of the last ") == 2 and f"average of the last {best}: BLEU 3.00  (chosen)" in told
    meta = json.loads((place / f"chosen-{best}" / "meta.json").read_text())
    assert meta["valid_bleu"] == 3.0 and len(meta["averaged"]) == best
    assert [(given["beam"], given["length_penalty"]) for given in decoded] == [(2, 0.3)] * 2, "as the recipe decodes"


def test_training_and_averaging_from_python(place):
    options = {"training.max_steps": 4, "training.validate_every": 2, "training.tensorboard": False}
    made = deepnmt.train(place / "tiny.toml", place / "joint", place / "python", overrides=options, device="cpu")
    assert isinstance(made, deepnmt.Run) and made.is_finished
    assert (made.folder, made.step, made.model) == (place / "python", 4, place / "python" / "model")
    assert made.scores.keys() == {"loss", "nll", "ppl", "bleu", "chrf"}
    deepnmt.Translator(made.model).translate(["a cat"], beam=1)
    options["training.max_steps"] = 6
    made = deepnmt.train(
        place / "tiny.toml", place / "joint", place / "python", overrides=options, device="cpu", resume=True
    )
    assert made.step == 6 and [line["step"] for line in made.log if line["kind"] == "validation"] == [2, 4, 6]
    averaged = deepnmt.average(made.folder, place / "python-average", last=2, of="steps")
    assert averaged.checkpoints == ["step-00000004", "step-00000006"]
    deepnmt.load_model(averaged.model)
    best = json.loads((made.folder / "best.json").read_text())["checkpoint"]
    averaged = deepnmt.average(made.folder, place / "python-best", best=2, best_on_valid=True)
    assert averaged.checkpoints[-1] == Path(best).name, "the best is in every window"
    with pytest.raises(InputError, match="of = 'foo' must be"):
        deepnmt.average(made.folder, place / "more", of="foo")


def torchrun(words, namespace=None):
    """torchrun, but its workers are forks of it, which need not import torch again; in a network of its own, or not."""
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    if namespace:
        enter_network(namespace)
    options, command = words[: words.index("train")], words[words.index("train") :]
    config, *_ = config_from_args(parse_args([*options, "-m", "deepnmt"]))
    config.start_method = "fork" if sys.platform == "linux" else "spawn"
    elastic_launch(config, work)(command)
    return 0


def work(words):
    sys.exit(main(words))


def enter_network(name):
    with Path("/var/run/netns", name).open() as file:
        assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True)
    return [int(number) for number in found.stdout.split()]


def test_lost_worker_is_replaced_and_the_run_resumes_from_its_checkpoint(place):
    run = place / "elastic"
    options = ["--nproc-per-node=2", "--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    options.append(f"--log-dir={place}")
    with Process(torchrun, [*options, *arguments(place, "elastic"), "--resume", "--device", "cpu"]) as process:
        wait_for_step(run, 15, process)
        os.kill(children(process.pid)[-1], signal.SIGKILL)
        assert process.wait() == 0, process.output
        assert "all 60 steps are done" in process.output
    assert logged(run, "step") == list(range(5, 61, 5))
    assert losses(run) == pytest.approx(losses(place / "run"), rel=2e-3)


def test_a_run_continues_without_the_node_of_its_main_rank(place):
    """The nodes meet at a store that is on neither of them."""
    run, port = place / "nodes", free_port()
    store = small.torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=2", "--rdzv-backend=c10d", f"--log-dir={place}"]
    options += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=nodes"]
    options.append("--rdzv-conf=is_host=0,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=2")
    words = [*options, *arguments(place, run.name, "training.max_steps=200"), "--resume", "--device", "cpu"]
    with ExitStack() as stack:
        # In torch 2.11, torchrun's shared store does not survive its node.
        alone = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        nodes = [stack.enter_context(Process(torchrun, words, **alone)) for _ in range(2)]
        wait_for_step(run, 25, nodes[0])
        left, lost = sorted(nodes, key=lambda node: "step 5/" in node.output)
        for pid in [*children(lost.pid), lost.pid]:
            os.kill(pid, signal.SIGKILL)
        assert left.wait() == 0, left.output
        assert "resuming from step" in left.output
    del store
    assert logged(run, "step") == list(range(5, 201, 5))
    assert losses(run)[:12] == pytest.approx(losses(place / "run"), rel=2e-3)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_loses_another_ends_with_one_sentence(place, victim):
    run, words = place / f"lost{victim}", arguments(place, f"lost{victim}", "training.max_steps=100000")
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(Process(main, [*words, "--device", "cpu"], RANK=str(rank), **world)) for rank in (0, 1)
        ]
        wait_for_step(run, 5, ranks[0])
        ranks[victim].kill()
        left = ranks[1 - victim]
        assert left.wait(60) == 1
        last = left.output.strip().splitlines()[-1]
    sentence = "lost another rank, which was killed or has crashed; the run can be resumed from its last checkpoint"
    assert last == f"deepnmt: {'' if victim else 'rank 1: '}{sentence}"


@pytest.fixture
def two_hosts():
    """Two network namespaces joined by a cable; each has its own 10.77.0.x and nothing else."""

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, check=True)

    names = [f"deepnmt-{os.getpid()}-{number}" for number in (1, 2)]
    cable = [f"dn{os.getpid() % 100000}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for number, (name, end) in enumerate(zip(names, cable, strict=True), start=1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield list(zip(names, cable, strict=True))
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.skipif(shutil.which("ip") is None, reason="network namespaces need the `ip` command")
def test_two_hosts_train_as_one(place, two_hosts):
    with ExitStack() as stack:
        hosts = []
        for number, (name, end) in enumerate(two_hosts):
            options = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={number}", "--master-addr=10.77.0.1"]
            options += ["--master-port=29577", f"--log-dir={place}"]
            command = [*arguments(place, "hosts", "training.max_steps=20"), "--device", "cpu"]
            host = Process(partial(torchrun, namespace=name), [*options, *command], GLOO_SOCKET_IFNAME=end)
            hosts.append(stack.enter_context(host))
        for host in hosts:
            assert host.wait() == 0, host.output
    assert losses(place / "hosts") == pytest.approx(losses(place / "run")[:4], rel=2e-3)
