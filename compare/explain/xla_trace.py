"""Read a profile of JAX: its kernels with their class and layer.

Every kernel names its instruction of XLA's program. The program's text says what the instruction computes, and in which
scopes JAX traced it. A CPU runs instructions as calls or as loops over parts. Both count as kernels.
"""

import re
from collections.abc import Mapping

from compare.base import names
from compare.base.operation_counts import DATA_GRADIENT, FORWARD, WEIGHT_GRADIENT
from compare.base.profiles import UPDATE_SCOPE, Event, Profile
from compare.explain import hlo_text, work_classes
from compare.explain.hlo_text import Instruction
from compare.explain.kernels import Kernel
from compare.explain.torch_trace import UPDATE
from compare.explain.work_classes import CONVOLUTIONS, LAYOUT, PRODUCT, REDUCTION


def read(profile: Profile) -> list[Kernel]:
    """Return the kernels of a profile, in the order in which they began."""
    instructions: dict[str, Instruction] = {}
    for text in profile.programs:
        instructions |= hlo_text.read(text)
    instructions |= {_plain(name): instruction for name, instruction in instructions.items()}
    sizes = {(name.rpartition(".")[0], size) for name, size in profile.parameters.items() if name.endswith("kernel")}
    kernels = [
        _make_kernel(event, instructions, profile.layers, sizes)
        for event in profile.events
        if not str(event["name"]).startswith("end: ")
    ]
    return sorted(kernels, key=lambda kernel: kernel.begin)


def _plain(name: str) -> str:
    """Return an instruction's name as XLA writes it into the name of its kernel."""
    return re.sub(r"[.\-]", "_", name)


def _make_kernel(
    event: Event, instructions: Mapping[str, Instruction], layers: Mapping[str, str], sizes: set[tuple[str, int]]
) -> Kernel:
    name, begin = str(event["name"]), event["ts"] * 1e-6
    end, lane = begin + event["dur"] * 1e-6, str(event["tid"])
    instruction = instructions.get(event["args"].get("hlo_op", "")) or instructions.get(name)
    own_name = work_classes.classify_name(name)
    if instruction is None:
        return Kernel(name, begin, end, lane, own_name or work_classes.UNATTRIBUTED)
    found = [names.find_layer(op_name, layers) for op_name in instruction.op_names]
    named = list(dict.fromkeys(filter(None, found)))
    is_update = bool(instruction.op_names) and UPDATE_SCOPE in instruction.op_names[0].split("/")
    work = work_classes.classify_xla(instruction.opcodes, [layers[each] for each in named], is_update)
    if own_name is not None and work_classes.moves_data(name) and work not in (work_classes.OPTIMIZER, LAYOUT):
        work = own_name  # a call of cuDNN may first change the memory order
    is_product = work in (PRODUCT, CONVOLUTIONS[FORWARD])
    layer = work_classes.choose_layer(named, layers, work) if not is_update or is_product else ""
    if is_product and not layer:  # XLA drops the scopes of some gradients
        owners = [owner for owner, size in sizes if size == instruction.output]
        layer = owners[0] if len(owners) == 1 else ""
    work, direction = _direct(work, name, instruction, layer, is_update, sizes)
    return Kernel(
        name,
        begin,
        end,
        lane,
        work,
        layer,
        direction,
        instruction.bytes,
        instruction.name,
        work == LAYOUT and work_classes.is_cast(instruction.opcodes),
    )


def _direct(
    work: str, name: str, instruction: Instruction, layer: str, is_update: bool, sizes: set[tuple[str, int]]
) -> tuple[str, str]:
    """Return the class with its direction, and the direction."""
    is_backward = any(names.is_backward(op_name, layer) for op_name in instruction.op_names[:1])
    is_kernel = (layer, instruction.output) in sizes
    if work == CONVOLUTIONS[FORWARD]:
        direction = instruction.gradient or _gradient_in_name(name)
        if not direction:
            direction = FORWARD
            if is_kernel:
                direction = WEIGHT_GRADIENT
            elif is_backward:
                direction = DATA_GRADIENT
        return CONVOLUTIONS[direction], direction
    if is_update and work != PRODUCT:
        return work, UPDATE
    if not is_backward and not (work == PRODUCT and is_kernel):
        return work, FORWARD
    if work == PRODUCT and is_kernel:
        return work, WEIGHT_GRADIENT
    return work, WEIGHT_GRADIENT if work == REDUCTION else DATA_GRADIENT


def _gradient_in_name(name: str) -> str:
    work = work_classes.classify_name(name)
    return next((direction for direction in (DATA_GRADIENT, WEIGHT_GRADIENT) if work == CONVOLUTIONS[direction]), "")
