#!/usr/bin/env bash
# Why it exists: what leading adds to a job's step, on one GPU and in one visit: the same script
# plain, led, and plain again, with the clock beside each. TRUTH names the script's folder.
set -u
for shape in "--size 3b --seq 8192 --mbs 2 --ac" "--size 8b --layers 12 --seq 8192 --mbs 2 --ac" \
             "--size 1b --seq 4096 --mbs 2" "--size 8b --layers 12 --seq 4096 --mbs 1"; do
    for how in plain led plain; do
        case $how in
        plain) set -- torchrun --nproc-per-node 1 ;;
        led) set -- python3 -m phantora_ns.cli --leaders 0 --gpus-per-node 1 ${PHANTORA_OPTIONS:-} torchrun --nproc-per-node 1 ;;
        esac
        echo "== $how $shape"
        nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits -lms 200 >/tmp/clocks.$$ &
        sampler=$!
        timeout 90 "$@" "$TRUTH/train.py" --mode fsdp $shape --steps 10 --warmup 4 2>&1 | grep -v Warning | tail -n 12
        kill $sampler
        awk -F, '$2 > 600 {n++; c += $1} END {if (n) printf "clock %.0f MHz while hot, %d samples\n", c / n, n}' /tmp/clocks.$$
    done
done
