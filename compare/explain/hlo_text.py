"""Read the text of a program that XLA has compiled: what each of its instructions computes, and on how many bytes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compare.explain.shapes import itemsize, product

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+)\s*\(.*\)\s*->\s*.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|\s)([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLS = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-]+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')

_CUSTOM_CALLS: Mapping[str, tuple[str, str]] = {
    "convforward": ("convolution", ""),
    "convbiasactivationforward": ("convolution", ""),
    "convbackwardinput": ("convolution", "data-gradient"),
    "convbackwardfilter": ("convolution", "weight-gradient"),
    "gemm": ("dot", ""),
    "matmul": ("dot", ""),
}
"""What XLA's calls of cuDNN and cuBLAS compute: the opcode, and a convolution's direction."""


@dataclass(frozen=True)
class Instruction:
    """One instruction, with everything that is fused into it.

    Attributes:
        name: unique in the program.
        opcodes: its own opcode, and those of the instructions in it.
        op_names: the names that JAX gave these instructions, its own first.
        bytes: bytes of its operands and its result.
        output: number of values of its result.
        gradient: direction of a convolution, if its call says so, else "".
    """

    name: str
    opcodes: Sequence[str]
    op_names: Sequence[str]
    bytes: float
    output: int
    gradient: str


@dataclass(frozen=True)
class _Line:
    name: str
    type: str
    opcode: str
    rest: str


def read(text: str) -> dict[str, Instruction]:
    """Return the instructions of all computations by name."""
    computations = _split(text)
    types = {line.name: line.type for lines in computations.values() for line in lines}
    return {
        line.name: _make_instruction(line, computations, types) for lines in computations.values() for line in lines
    }


def _split(text: str) -> dict[str, list[_Line]]:
    computations: dict[str, list[_Line]] = {}
    lines: list[_Line] | None = None
    for text_line in text.splitlines():
        if lines is None:
            if match := _COMPUTATION.match(text_line):
                lines = computations[match[1]] = []
        elif text_line.startswith("}"):
            lines = None
        elif match := _INSTRUCTION.match(text_line):
            opcode = _OPCODE.search(match[2])
            if opcode is not None:
                lines.append(_Line(match[1], match[2][: opcode.start()], opcode[1], match[2][opcode.end() :]))
    return computations


def _make_instruction(line: _Line, computations: Mapping[str, list[_Line]], types: Mapping[str, str]) -> Instruction:
    inner = list(_inside(line, computations, set()))
    opcodes, gradient = list[str](), ""
    for each in (line, *inner):
        opcode, direction = _opcode(each)
        opcodes.append(opcode)
        gradient = gradient or direction
    op_names = [match[1] for each in (line, *inner) if (match := _OP_NAME.search(each.rest))]
    operands = _OPERAND.findall(line.rest.split("), ")[0])
    size = _bytes(line.type) + sum(_bytes(types.get(name, "")) for name in operands)
    output = sum(product(sizes) for _, sizes in _ARRAY.findall(line.type)[:1])
    return Instruction(line.name, opcodes, op_names, size, output, gradient)


def _inside(line: _Line, computations: Mapping[str, list[_Line]], seen: set[str]) -> Iterator[_Line]:
    """Yield the instructions of the computations that an instruction calls. A loop's body runs as its own kernels."""
    if line.opcode not in ("fusion", "call", "custom-call", "async-start"):
        return
    for name in _CALLS.findall(line.rest):
        if name in computations and name not in seen:
            seen.add(name)
            for inner in computations[name]:
                yield inner
                yield from _inside(inner, computations, seen)


def _opcode(line: _Line) -> tuple[str, str]:
    if line.opcode != "custom-call":
        return line.opcode, ""
    target = _TARGET.search(line.rest)
    word = target[1].rpartition("$")[2].lower() if target else ""
    return _CUSTOM_CALLS.get(word, (line.opcode, ""))


def _bytes(type_text: str) -> float:
    return float(sum(product(sizes) * itemsize(dtype) for dtype, sizes in _ARRAY.findall(type_text)))
