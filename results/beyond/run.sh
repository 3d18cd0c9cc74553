#!/usr/bin/env bash
# `deepnmt reproduce beyond` on Multi30k with one GPU, some minutes at a time.
#
#   bash results/beyond/run.sh rates TEXT OUT        18 layers, three learning rates, 400 updates: which one each arm gets
#   bash results/beyond/run.sh multi30k TEXT OUT     all 48 arms, seed by seed: 18 layers, 30 layers, the next seed
#
# TEXT has .en.xz and .de.xz of train, val, test_2016_flickr, test_2017_flickr. MINUTES is the time for this command (default
# 9.5), of which half a minute is for packing.
#
# Bring home: all of OUT. It is written anew every minute, so a command that is cut off leaves all but its last minute.
#   OUT/NAME.tar.gz       the small files of every run: curves, translations (multi30k: about 6 MB for three seeds)
#   OUT/compiled.tar.gz   the compiler's cache, which saves the next machine a minute or two
#
# Resume: on the same machine, repeat the command; runs that were cut off continue from their checkpoints. On another machine,
# from what this repository keeps or from what the last machine left:
#   STUDY=results/beyond/multi30k.tar.xz bash results/beyond/run.sh multi30k TEXT OUT
#   STUDY=multi30k.tar.gz COMPILED=compiled.tar.gz bash results/beyond/run.sh multi30k TEXT OUT
# Finished runs are not repeated; those that were cut off start again. A later call may ask for more SEEDS or other ARMS.
#
# At home, for scores, significance and the report (no GPU, no data), and to keep it:
#   tar xf multi30k.tar.gz && cp results/beyond/cost.json multi30k/beyond/ && deepnmt reproduce --score-only multi30k
#   tar c --exclude workers --exclude '*.svg' --exclude 'report.*' multi30k | xz -9e > results/beyond/multi30k.tar.xz
#
# Also: SEEDS, PARALLEL (processes at a time), TOKENS (of a run), ARMS (patterns without spaces: "*30L"), SETTINGS (overrides),
# DEVICE, WORK (scratch folder; the same for every command on a machine).
set -euo pipefail
study=$1 text=$2 out=$3
case $study in
multi30k) experiment=beyond SEEDS=${SEEDS:-3} TOKENS=${TOKENS:-8192000} ;;
rates) experiment=beyond-rates SEEDS=${SEEDS:-1} TOKENS=${TOKENS:-3276800} ;;
*) echo "unknown study $study: multi30k or rates" >&2; exit 2 ;;
esac
valid=val test=test_2016_flickr more=test_2017_flickr
PARALLEL=${PARALLEL:-14} NAME=${NAME:-$study} DEVICE=${DEVICE:-cuda}
# In memory if there is room: the runs write a checkpoint every second or two, of which the mean of the last five is kept.
room=$(df --output=avail -BG /dev/shm 2> /dev/null | tail -n 1 | tr -dc 0-9)
if [ -d /dev/shm/beyond ] || [ "${room:-0}" -ge 24 ]; then WORK=${WORK:-/dev/shm/beyond}; else WORK=${WORK:-/tmp/beyond}; fi
started=$(date +%s)
python=$(command -v python || command -v python3)
end=$($python -c "print(int($started + 60 * ${MINUTES:-9.5}) - 30)")
here=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
# Every worker compiles by itself: a pool of compilers for each of a dozen workers would be too many processes.
export TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_CACHE_DIR=$WORK/compiled/inductor TRITON_CACHE_DIR=$WORK/compiled/triton
mkdir -p "$WORK/compiled" "$out"
if [ -n "${STUDY:-}" ] && [ ! -d "$WORK/$NAME" ]; then tar xf "$STUDY" -C "$WORK"; fi
if [ -n "${COMPILED:-}" ] && [ ! -d "$TRITON_CACHE_DIR" ]; then tar xzf "$COMPILED" -C "$WORK"; fi

data=$WORK/data/multi30k
[ -d "$data" ] || $python -m deepnmt prepare --source "$text/train.en.xz" --target "$text/train.de.xz" \
    --valid-source "$text/$valid.en.xz" --valid-target "$text/$valid.de.xz" \
    --test-source "$text/$test.en.xz" --test-target "$text/$test.de.xz" \
    --source-lang en --target-lang de --joint --vocab-size 10000 --out "$data"

if [ "$DEVICE" = cuda ]; then # under MPS the workers' kernels run side by side; without it they take turns
    export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps
    mkdir -p "$WORK/mps"
    echo quit | timeout 5 nvidia-cuda-mps-control > /dev/null 2>&1 || true # one that an earlier command left
    if ! { nvidia-cuda-mps-control -d && $python -c "import torch; torch.ones(1, device='cuda').item()"; }; then
        unset CUDA_MPS_PIPE_DIRECTORY
    fi
    echo "MPS: ${CUDA_MPS_PIPE_DIRECTORY:-none}"
fi

pack() {
    [ -d "$WORK/$NAME/runs" ] || return 0
    # Status 1: a file changed meanwhile, such as a worker's log.
    tar czf "$out/.packing" -C "$WORK" --exclude training --exclude model --exclude lock.json "$NAME" || [ $? -eq 1 ] || return 0
    mv "$out/.packing" "$out/$NAME.tar.gz"
}
(while sleep 60; do pack; done) 2> /dev/null &
packer=$!

read -ra arms <<< "${ARMS:-*}"
reproduce() {
    # shellcheck disable=SC2086
    timeout -s TERM -k 20 $((end - $(date +%s))) $python -m deepnmt reproduce $experiment training.tensorboard=false ${SETTINGS:-} \
        --scale multi30k --data "$data" --out "$WORK/$NAME" --tokens "$TOKENS" --seeds "$SEEDS" \
        --test $more "$text/$more.en.xz" "$text/$more.de.xz" \
        --parallel "$PARALLEL" --device "$DEVICE" --no-scores --arms "${arms[@]}"
}
if ! reproduce; then
    echo "not all runs are done after $(($(date +%s) - started)) s"
    # A process that breaks its GPU context breaks those of all processes under the same MPS: the second try is without.
    if [ $((end - $(date +%s))) -gt 60 ]; then unset CUDA_MPS_PIPE_DIRECTORY && reproduce || true; fi
fi

kill $packer 2> /dev/null || true
pack
tar czf "$out/compiled.tar.gz" -C "$WORK" compiled || true
[ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || echo quit | timeout 5 nvidia-cuda-mps-control || true
count() { find "$WORK/$NAME/runs" -name "$1" 2> /dev/null | wc -l; }
echo "$(count train.json) runs trained, $(count decode.json) translated, after $(($(date +%s) - started)) s"
grep -h "ended with an error" "$WORK/$NAME"/workers/*.log 2> /dev/null | tail -3 || true
ls -l "$out"
