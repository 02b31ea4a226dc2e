#!/usr/bin/env bash
# Makes the evidence under benchmarks/h200 on a machine with four GPUs: three time, one certifies, each with cores of
# its own. PYTHON names the interpreter. Arguments choose parts: compare, agree, large, selftest, equal (default: all);
# large certifies resnet50 and convnext-tiny, equal compares each tuned contender with itself, and with a bare loop.
#   bash benchmarks/h200.sh compare agree
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=benchmarks/h200
parts=" ${*:-compare agree large selftest equal} "
precisions="float32 tf32 bfloat16 float16"
cores=$(nproc)

on() { # GPU FIRST-CORE LAST-CORE NAME ARGUMENTS...: run samestep there, its report beside the result
    local gpu=$1 cpus=$2-$3 name=$4
    shift 4
    mkdir -p "$folder/$name"
    CUDA_VISIBLE_DEVICES=$gpu taskset -c "$cpus" "$python" -m compare "$@" --device cuda --out "$folder/$name" \
        >"$folder/$name/report.txt" 2>&1
    echo "$name: exit code $? after $SECONDS s"
}

asked() { [[ $parts == *" $1 "* ]]; }

mnist_files() { # MNIST's own format, so that the loader is the real one; 2,048 synthetic images
    "$python" -m benchmarks.synthetic_mnist samestep-out/mnist
}

timing() { # GPU PRECISION...
    local gpu=$1 first=$(($1 * 8))
    shift
    for precision in "$@"; do
        on "$gpu" "$first" $((first + 7)) "digits-cnn-$precision" \
            compare --precision "$precision" --rounds 3
        on "$gpu" "$first" $((first + 7)) "cifar-cnn-$precision" \
            compare --workload cifar-cnn --precision "$precision" --rounds 3
    done
    if asked selftest && [[ $gpu == 0 ]]; then
        CUDA_VISIBLE_DEVICES=0 taskset -c 0-7 "$python" -m compare selftest --device cuda >"$folder/selftest.txt" 2>&1
        echo "selftest: exit code $? after $SECONDS s"
    fi
}

certifying() { # GPU
    local gpu=$1 first=$((cores * 3 / 8)) last=$((cores - 1))
    export TORCHINDUCTOR_COMPILE_THREADS=2
    mnist_files
    for precision in $precisions; do
        on "$gpu" $first $last "agree-digits-cnn-$precision" agree --precision "$precision" &
        on "$gpu" $first $last "agree-mnist-cnn-$precision" \
            agree --workload mnist-cnn --data samestep-out/mnist --precision "$precision" &
        on "$gpu" $first $last "agree-cifar-cnn-$precision" \
            agree --workload cifar-cnn --epochs 12 --precision "$precision" &
        on "$gpu" $first $last "agree-cifar-resnet18-$precision" \
            agree --workload cifar-resnet18 --epochs 12 --precision "$precision" &
        if asked large; then
            for workload in resnet50 convnext-tiny; do
                # Choosing kernels by timing them takes minutes here and decides nothing about agreement.
                XLA_FLAGS=--xla_gpu_autotune_level=0 on "$gpu" $first $last "agree-$workload-$precision" \
                    agree torch:stock jax:stock --workload $workload --batch-size 8 --precision "$precision" --seeds 2 &
            done
        fi
    done
    wait
}

equal() { # GPU BACKEND: the same contender twice, and its loop by hand
    local gpu=$1 backend=$2 first=$(($1 * 8))
    for workload in cifar-cnn resnet50; do
        on "$gpu" "$first" $((first + 7)) "equal-$backend-$workload" \
            compare "$backend:tuned" "$backend:tuned" --workload $workload --precision bfloat16
    done
    CUDA_VISIBLE_DEVICES=$gpu taskset -c "$first-$((first + 7))" "$python" -m benchmarks.bare_loop \
        --backend "$backend" --tuning tuned --workload cifar-cnn --device cuda >"$folder/bare-$backend.txt" 2>&1
}

if asked compare; then
    timing 0 float32 &
    timing 1 tf32 bfloat16 &
    timing 2 float16 &
fi
if asked agree; then
    certifying 3 &
fi
wait
if asked equal; then
    equal 0 torch &
    equal 1 jax &
    wait
fi
