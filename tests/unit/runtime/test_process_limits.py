"""The process runtime: memory that runs out and frameworks that crash are told as what they are."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from support import Cli, make_bundle

HERE = ("--runtime", "process", "--python", sys.executable, "--trust")
QUICK = ("--duration", "100ms", "--warmup", "10ms", "--no-accuracy", "--json")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")


def greedy_graph(path: Path) -> None:
    """Write the graph of `make_bundle` with a step that needs 2 GiB for a moment."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("ReduceMax", ["points"], ["most"], keepdims=0),
        helper.make_node("Expand", ["most", "size"], ["many"]),
        helper.make_node("ReduceMax", ["many"], ["again"], keepdims=0),
        helper.make_node("MatMul", ["points", "weights"], ["product"]),
        helper.make_node("Add", ["product", "again"], ["scores"]),
    ]
    initializers = [
        helper.make_tensor("size", TensorProto.INT64, [1], [1 << 29]),
        helper.make_tensor("weights", TensorProto.FLOAT, [6, 4], np.ones(24, np.float32)),
    ]
    graph = helper.make_graph(
        nodes,
        "greedy",
        [helper.make_tensor_value_info("points", TensorProto.FLOAT, ["N", 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 4])],
        initializers,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


@linux_only
def test_code_over_the_memory_limit_is_told_with_the_limit(cli: Cli, tmp_path) -> None:
    code = "x = [bytearray(1 << 20) for _ in range(4096)]"
    bundle = make_bundle(tmp_path / "b", preprocess=code)
    error = cli("run", bundle, *HERE, *QUICK, "--memory", "512MiB").error(4, "worker-failed")
    assert (error["fault"], error["where"]) == ("environment", "out-of-memory")
    assert "512 MiB" in error["message"]
    assert "--memory" in error["hint"]


@linux_only
def test_a_framework_over_the_memory_limit_is_told_with_the_limit(cli: Cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "b")
    greedy_graph(bundle / "model.onnx")
    error = cli("run", bundle, *HERE, *QUICK, "--memory", "1GiB").error(4, "worker-failed")
    assert error["where"] == "out-of-memory", error
    assert "1 GiB" in error["message"]


@linux_only
def test_the_record_says_that_memory_is_limited(cli: Cli, tmp_path) -> None:
    code = (
        "import resource\nassert resource.getrlimit(resource.RLIMIT_DATA) == (1 << 30, 1 << 30)\nreturn data"
    )
    bundle = make_bundle(tmp_path / "b", preprocess=code)
    record = cli("run", bundle, *HERE, *QUICK, "--memory", "1GiB").document()
    assert record["environment"]["limits"]["memory_bytes"] == 1 << 30


def test_a_crash_says_which_signal_and_where_in_python(cli: Cli, tmp_path) -> None:
    code = "import ctypes\n" + "ctypes.string_at(0)"
    error = cli("run", make_bundle(tmp_path / "b", preprocess=code), *HERE, *QUICK).error(4, "worker-failed")
    assert "SIGSEGV" in error["message"]
    assert any("Segmentation fault" in line for line in error["context"]), error["context"]
    assert any("preprocess of the manifest" in line for line in error["context"]), error["context"]


def test_a_crash_while_it_is_loaded_is_told_alike(cli: Cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "b")
    (bundle / "predictor.py").write_text(
        "import ctypes\nclass Predictor:\n    def open(self, model, options):\n        ctypes.string_at(0)\n"
    )
    with (bundle / "model.yml").open("a") as stream:
        stream.write("predictor: predictor.py\n")
    error = cli("run", bundle, *HERE, *QUICK).error(4, "worker-failed")
    assert "SIGSEGV" in error["message"]
    assert any("predictor.py" in line and "in open" in line for line in error["context"]), error["context"]


def kills_of_this_machine() -> str | None:
    """How often the kernel has killed for want of memory; None where it does not say."""
    if not os.access("/proc/vmstat", os.R_OK):
        return None
    found = [line for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("oom_kill ")]
    return found[0] if found else None


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL])
def test_other_signals_are_named(cli: Cli, tmp_path, number) -> None:
    code = f"import os\nos.kill(os.getpid(), {int(number)})"
    kills = kills_of_this_machine()
    error = cli("run", make_bundle(tmp_path / "b", preprocess=code), *HERE, *QUICK).error(4, "worker-failed")
    # Where the kernel has killed anybody meanwhile, nobody knows whom.
    if number == signal.SIGKILL and kills != kills_of_this_machine():
        assert error["where"] in {"measuring-process-killed", "out-of-memory"}
        return
    assert number.name in error["message"]
    if number == signal.SIGKILL and kills is not None:
        assert error["where"] == "measuring-process-killed"
        assert "not for want of memory" in error["message"]


def test_what_a_pass_has_forked_does_not_hold_up_its_end(cli: Cli, tmp_path) -> None:
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n    os._exit(0)\nraise RuntimeError('over')"
    # It ends, or the command does not come back in the time that a test gives one.
    error = cli("run", make_bundle(tmp_path / "b", preprocess=code), *HERE, *QUICK).error(4, "worker-failed")
    assert "over" in error["message"]
