#!/usr/bin/env bash
# Why it exists: what calls of CUDA's libraries cost the host of a host-bound job, with no profiler
# attached (calls.c counts them), and how much whole steps vary. One GPU, four minutes.
#     TRUTH=DIR bench/host_calls/run.sh OUT_DIR      DIR holds the training script train.py
set -u
here=$(dirname "$0") out=$1
mkdir -p "$out"
gcc -O2 -shared -fPIC -o "$out/calls.so" "$here/calls.c" -ldl -lm || exit 1
number=0
for job in "--size 160m --mode fsdp --seq 1024" "--size 160m --mode ddp --seq 1024" \
           "--size 1b --mode fsdp --seq 512" "--size 1b --mode ddp --seq 512" \
           "--size 160m --mode ddp --seq 1024 --compile"; do
    number=$((number + 1))
    for how in plain counted plain; do
        preload=
        [ $how = counted ] && preload=$out/calls.so
        CALLS_OUT=$out/calls-$number torchrun --nproc-per-node 1 --no-python \
            env LD_PRELOAD=$preload python3 "$TRUTH/train.py" $job --steps 60 --warmup 10 2>&1 |
            sed -n "s/^RESULT {/{\"how\": \"$how\", /p" >>"$out/steps.jsonl"
    done
done
rm "$out/calls.so"
