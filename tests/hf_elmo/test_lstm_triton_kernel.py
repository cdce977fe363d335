"""The GPU's kernel against the CPU's, in Triton's interpreter; and on a GPU where there is one."""

import ast
import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import hf_elmo
from hf_elmo import ElmoConfig
from hf_elmo.lstm import ElmoLstmStack

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which runs on Linux alone"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# Triton reads its setting when it is imported: a process of its own.
SCRIPT = """
import torch
from torch.testing import assert_close
from hf_elmo import lstm_elementwise, lstm_triton_kernel

torch.manual_seed(0)
for rows, cell_size, cell_clip in ((3, 16, 0.3), (1, 2500, 0.3), (5, 300, None)):
    gates, cell = torch.randn(rows, 4 * cell_size), torch.randn(rows, cell_size)
    expected_gates, expected_cell = gates.clone(), cell.clone()
    expected = lstm_elementwise.activate(expected_gates, expected_cell, cell_clip)
    assert_close(lstm_triton_kernel.activate(gates, cell, cell_clip), expected)
    assert_close((gates, cell), (expected_gates, expected_cell))
print("equal")
"""
NAN_SCRIPT = """
import torch
from hf_elmo import lstm_triton_kernel

gates, cell = torch.zeros(3, 4), torch.tensor([[torch.nan], [9.0], [-9.0]])
hidden, cell_tanh = lstm_triton_kernel.activate(gates, cell, 3.0)
print(cell.flatten().tolist(), hidden.isnan().flatten().tolist())
"""
COMPILER_SCRIPT = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hf_elmo.lstm_triton_kernel import activate_kernel

types = dict.fromkeys(["gates", "cell", "hidden", "cell_tanh"], "*fp32")
types |= {"numel": "i32", "cell_size": "i32", "cell_clip": "fp32"}
types |= {"is_clipped": "constexpr", "block_size": "constexpr"}
source = ASTSource(activate_kernel, types, {"is_clipped": True, "block_size": 1024})
print(sorted(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm)[0])
"""


def interpret(script: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@needs_triton
def test_the_kernel_in_the_interpreter_equals_the_cpus_operations() -> None:
    done = interpret(SCRIPT)
    assert done.stdout == "equal\n", done.stderr


@needs_triton
def test_a_clipped_cell_that_is_not_a_number_stays_so() -> None:
    done = interpret(NAN_SCRIPT)
    assert done.stdout == "[nan, 3.0, -3.0] [True, False, False]\n", done.stderr


@needs_triton
def test_the_kernel_compiles_for_a_gpu_that_is_not_here() -> None:
    command = [sys.executable, "-W", "ignore", "-c", COMPILER_SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "cubin\n", done.stderr


def test_the_kernel_names_nothing_that_its_compiler_does_not_know() -> None:
    path = Path(hf_elmo.__file__).with_name("lstm_triton_kernel.py")  # importing it needs Triton
    (kernel,) = (
        part
        for part in ast.parse(path.read_text("utf-8")).body
        if isinstance(part, ast.FunctionDef) and part.decorator_list
    )
    names = [x for part in (kernel.args, *kernel.body) for x in ast.walk(part)]
    known = {x.arg for x in names if isinstance(x, ast.arg)}
    known |= {x.id for x in names if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    assert {x.id for x in names if isinstance(x, ast.Name)} - known == {"tl"}


@pytest.mark.slow
def test_a_cpu_needs_no_triton() -> None:
    script = "import sys, hf_elmo; print('hf_elmo.lstm_triton_kernel' in sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


@needs_gpu
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_outputs_and_gradients_on_a_gpu_are_those_on_a_cpu(reverse: bool) -> None:
    config = ElmoConfig(projection_size=8, cell_size=16, cell_clip=0.3, projection_clip=0.2)
    torch.manual_seed(0)
    stack = ElmoLstmStack(config).eval()
    for parameter in stack.parameters():
        parameter.data.normal_(0, 0.5)
    twin = copy.deepcopy(stack).cuda()
    x, h, c = torch.randn(11, 8), torch.randn(2, 5, 8) * 0.2, torch.randn(2, 5, 16) * 0.2
    expected = stack(x, [5, 3, 2, 1], (h, c), reverse=reverse)
    actual = twin(x.cuda(), [5, 3, 2, 1], (h.cuda(), c.cuda()), reverse=reverse)
    assert_close(actual, expected, check_device=False)
    with torch.no_grad():
        quick = twin(x.cuda(), [5, 3, 2, 1], (h.cuda(), c.cuda()), reverse=reverse)
    assert_close(quick, expected, check_device=False)
    for outputs, _ in (expected, actual):
        outputs[-1].square().sum().backward()
    for one, other in zip(twin.parameters(), stack.parameters(), strict=True):
        assert_close(one.grad, other.grad, check_device=False)
