#!/usr/bin/env bash
# Make the evidence under benchmarks/h200, in samestep-out/h200, on a machine with an NVIDIA GPU.
# Arguments are steps, which run one after the other: tunings WORKLOAD PRECISION, and so on with a colon between words.
#   bash benchmarks/h200.sh selftest tunings:resnet50:bfloat16 beside:resnet50:torch
# CUDA_VISIBLE_DEVICES chooses the GPUs. PYTHON names the interpreter.
# A checkout with new files calls itself dirty in results, so copy the results afterwards: samestep bundle packs them.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=samestep-out/h200
: "${*:?name steps}"
mkdir -p "$folder"

keep() { # NAME COMMAND...: run a command, and keep it with its output in NAME.txt
    local name=$1
    shift
    echo "\$ $*" >"$folder/$name.txt"
    "$@" >>"$folder/$name.txt" 2>&1
    echo "$name: exit code $? after $SECONDS s"
}

samestep() { # NAME ARGUMENTS...: run samestep, with its result in a folder of that name
    local name=$1
    shift
    keep "$name" "$python" -m compare "$@" --device cuda --out "$folder/$name"
}

data_of() { # WORKLOAD: set `data` to the options of its data. MNIST is made in its own format, for the real loader
    data=()
    if [[ $1 == mnist-cnn ]]; then
        "$python" -m benchmarks.synthetic_mnist samestep-out/mnist
        data=(--data samestep-out/mnist)
    fi
}

headline() { # WORKLOAD: both frameworks as tuned. JAX searches for kernels in every round, as cuDNN does for torch
    samestep "$1-bfloat16" compare torch:tuned jax:tuned --workload "$1" --precision bfloat16 --search-anew
}

tunings() { # WORKLOAD PRECISION: every tuning of both frameworks
    data_of "$1"
    samestep "tunings-$1-$2" compare torch:stock torch:compiled torch:tuned jax:stock jax:compiled jax:tuned \
        --workload "$1" "${data[@]}" --precision "$2" --rounds 3 --skip-energy --skip-cold-compile
}

agree() { # WORKLOAD PRECISION: the certificate of whole training runs
    data_of "$1"
    local settings=()
    case $1 in
    cifar-cnn) settings=(--epochs 12) ;;
    cifar-resnet18) settings=(--epochs 30) ;;
    resnet50 | convnext-tiny | mobilenet-v2 | vgg16) settings=(--batch-size 64) ;;
    esac
    samestep "agree-$1-$2" agree torch:stock jax:stock --workload "$1" "${data[@]}" "${settings[@]}" --precision "$2"
}

beside() { # WORKLOAD BACKEND: samestep's tuned contender beside the plain loops of its framework
    keep "beside-plain-$1-$2" "$python" -m benchmarks.beside_plain --workload "$1" --backend "$2" --rounds 2
}

beside-devices() { # COUNT BACKEND: the same for resnet50 on several GPUs
    keep "beside-plain-resnet50-$1-devices-$2" "$python" -m benchmarks.beside_plain --workload resnet50 \
        --devices "$1" --backend "$2" --rounds 2
}

beside-requests() { # WORKLOAD: tuned requests of both frameworks beside plain loops, at batch 1 and 256
    keep "beside-requests-$1" "$python" -m benchmarks.beside_plain_requests --workload "$1"
}

bare() { # BACKEND: samestep's timing loop beside a bare loop
    keep "bare-$1" "$python" -m benchmarks.bare_loop --backend "$1" --tuning tuned --workload cifar-cnn \
        --precision bfloat16 --device cuda
}

fit() { # BACKEND: the largest batch of cifar-cnn in 8 GiB
    mkdir -p "$folder/fit-$1"
    samestep "fit-$1" fit "$1" --workload cifar-cnn --precision bfloat16 --memory 8192
}

scale() { # COUNTS: JAX in both ways on those numbers of GPUs, as in 1,2,4
    samestep scale-resnet50-jax scale jax:tuned+sharded jax:tuned+pmap --devices "$1" --workload resnet50 \
        --batch-size 256 --batch-norm sync --precision bfloat16 --rounds 4 --skip-cold-compile
}

sides() { # COUNT: both frameworks over several GPUs
    samestep "sides-resnet50-$1-devices" compare torch:tuned+ddp jax:tuned+pmap --workload resnet50 \
        --batch-size $((256 * $1)) --precision bfloat16 --devices "$1" --batch-norm sync --rounds 3 --skip-energy \
        --skip-cold-compile
}

selftest() { keep selftest "$python" -m compare selftest --device cuda; }

for step in "$@"; do ${step//:/ }; done
