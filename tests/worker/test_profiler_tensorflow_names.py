"""Names of TensorFlow's layers, from the graph that runs back to the one that was written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlbundle.worker.profilers.tensorflow_graph import Node, Origin, Program, authors_op, node_of


def nodes(*entries: tuple[str, str, str]) -> dict[str, Node]:
    """Nodes from name, operator and inputs; an operator `f()` calls the function f."""
    found = {}
    for name, op, inputs in entries:
        functions = (op[:-2],) if op.endswith("()") else ()
        found[name] = Node(name, "PartitionedCall" if functions else op, tuple(inputs.split()), functions)
    return found


CHAIN = nodes(
    ("input", "Placeholder", ""),
    ("conv/weight", "Const", ""),
    ("conv/Conv2D", "Conv2D", "input conv/weight"),
    ("conv/BiasAdd", "BiasAdd", "conv/Conv2D conv/bias"),
    ("bn/FusedBatchNormV3", "FusedBatchNormV3", "conv/BiasAdd:0 bn/scale"),
    ("relu/Relu", "Relu", "bn/FusedBatchNormV3:y:0"),
    ("add", "AddV2", "relu/Relu short"),
)


def test_a_fused_node_is_of_the_convolution_that_it_took_in() -> None:
    running = nodes(("relu/Relu", "_FusedConv2D", "input"))
    assert Program({"": CHAIN}).origin("relu/Relu", "_FusedConv2D", running) == Origin(
        "conv/Conv2D", "Conv2D"
    )
    assert Program({"": CHAIN}).origin("relu/Relu", "_MklNativeFusedConv2D", running) == Origin(
        "conv/Conv2D", "Conv2D"
    )
    normalised = Program({"": CHAIN}).origin("relu/Relu", "_FusedBatchNormEx", running)
    assert normalised == Origin("bn/FusedBatchNormV3", "FusedBatchNormV3")


def test_a_node_that_still_runs_is_not_taken_in() -> None:
    running = nodes(("relu/Relu", "Relu", "bn/FusedBatchNormV3"), ("conv/Conv2D", "Conv2D", "input"))
    program = Program({"": CHAIN})
    assert program.origin("relu/Relu", "Relu", running) == Origin("relu/Relu", "Relu")
    assert program.origin("relu/Relu", "_FusedConv2D", running) == Origin("relu/Relu", "Relu")


def test_functions_lead_to_their_bodies() -> None:
    bodies = {
        "": nodes(("StatefulPartitionedCall_2", "signature()", ""), ("block/PartitionedCall", "inner()", "")),
        "signature": nodes(("StatefulPartitionedCall", "call()", ""), ("tower", "inner()", "")),
        "call": CHAIN,
        "inner": nodes(("Relu", "Relu", "")),
    }
    program = Program(bodies)
    before = "StatefulPartitionedCall_2/StatefulPartitionedCall/"
    assert program.origin(before + "add", "AddV2", {}) == Origin("add", "AddV2")
    assert program.origin(before + "relu/Relu", "_FusedConv2D", {}) == Origin("conv/Conv2D", "Conv2D")
    assert program.origin("StatefulPartitionedCall_2/tower/Relu", "Relu", {}) == Origin("tower/Relu", "Relu")
    assert program.origin("block/PartitionedCall/Relu", "Relu", {}) == Origin("block/Relu", "Relu")
    running = {before + "conv/Conv2D": CHAIN["conv/Conv2D"]}
    assert program.origin(before + "relu/Relu", "_FusedConv2D", running).op == "Relu", "it runs beside it"


def test_what_the_optimiser_made_has_the_name_of_what_it_was_made_from() -> None:
    program = Program({"": {**CHAIN, **nodes(("tower/add_1", "AddV2", ""))}})
    assert program.origin("ArithmeticOptimizer/AddOpsRewrite_add", "AddN", {}) == Origin("add", "")
    part = program.origin("ArithmeticOptimizer/AddOpsRewrite_Leaf_1_add", "AddN", {})
    assert part == Origin(), "two layers are not one of the author's"
    assert program.origin("tower/ArithmeticOptimizer/AddOpsRewrite_Internal_0_add_1", "AddV2", {}) == Origin()
    assert program.origin("tower/ArithmeticOptimizer/AddOpsRewrite_add_1", "AddN", {}).name == "tower/add_1"
    assert program.origin("conv/Conv2D-0-TransposeNHWCToNCHW-LayoutOptimizer", "Transpose", {}) == Origin()
    assert program.origin("unknown", "Relu", {}) == Origin()


def test_a_function_that_calls_itself_ends() -> None:
    program = Program({"": nodes(("a", "f()", "")), "f": nodes(("a", "f()", ""))})
    assert program.origin("a/" * 500 + "b", "Relu", {}) == Origin()
    assert program.origin("a/" * 100_000, "Relu", {}) == Origin()


def test_a_circle_of_nodes_ends() -> None:
    ring = nodes(("a", "Relu", "b"), ("b", "Relu", "a"))
    assert Program({"": ring}).origin("a", "_FusedConv2D", {}) == Origin("a", "Relu")


def test_operators_lose_what_was_put_before_them() -> None:
    names = ["_MklNativeFusedConv2D", "_FusedMatMul", "_MklBatchMatMulV2", "_FusedBatchNormEx", "Relu", "_"]
    assert [authors_op(name) for name in names] == [
        "Conv2D",
        "MatMul",
        "BatchMatMulV2",
        "FusedBatchNormV3",
        "Relu",
        "_",
    ]


def test_tensors_name_their_nodes() -> None:
    assert [node_of(one) for one in ("a", "a:2", "a:out:1", "a:b")] == [
        ("a", 0),
        ("a", 2),
        ("a", 1),
        ("a", 0),
    ]


NAMES = st.text("ab/_1:", max_size=12) | st.text(max_size=6)
BODIES = st.dictionaries(
    st.sampled_from(["", "f", "g"]),
    st.dictionaries(
        NAMES,
        st.builds(
            lambda op, inputs, functions: Node("a", op, tuple(inputs), tuple(functions)),
            st.sampled_from(["Relu", "Conv2D", "PartitionedCall"]),
            st.lists(NAMES, max_size=3),
            st.lists(st.sampled_from(["f", "g", "h"]), max_size=2),
        ),
        max_size=5,
    ),
)


@given(BODIES, NAMES, st.sampled_from(["_FusedConv2D", "Relu", "_", ""]))
def test_any_graph_and_any_name_give_an_answer(bodies, name, op) -> None:
    origin = Program(bodies).origin(name, op, bodies.get("", {}))
    assert isinstance(origin, Origin)
