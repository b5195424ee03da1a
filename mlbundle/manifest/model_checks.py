"""What a JSON Schema can't say about a model manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.errors import UsageError
from mlbundle.manifest.common_checks import STRONG, check_checksum, check_name, check_path, check_version
from mlbundle.manifest.custom_code import code_fault
from mlbundle.manifest.problems import did_you_mean, listing, shown
from mlbundle.manifest.values import SCHEMES, url_scheme
from mlbundle.manifest.versions import VersionConstraint

if TYPE_CHECKING:
    from mlbundle.manifest.view import Path, View

_SIDES = (("preprocess", "inputs"), ("postprocess", "outputs"))


def check_model(view: View) -> None:
    """Add to the view every problem of a model manifest that the schema does not see."""
    check_name(view, ("name",))
    check_version(view, ("version",))
    _check_body(view, ())
    for number in range(view.count("variants")):
        _check_body(view, ("variants", number))
    _check_variant_names(view)
    for code, tensors in _SIDES:
        _check_side(view, code, tensors)
    _check_dataset(view)
    check_checksum(view, ("expected", "outputs", "checksum"), required=("expected", "outputs", "path"))
    check_path(view, ("expected", "outputs", "path"))


def _check_body(view: View, base: Path) -> None:
    """Check framework, tensors and source of the manifest or of one variant."""
    check_name(view, (*base, "framework", "name"))
    _check_constraint(view, (*base, "framework", "version"))
    for side in ("inputs", "outputs"):
        _check_tensors(view, (*base, side))
    _check_source(view, (*base, "model"))
    _check_predictor(view, (*base, "predictor"))


def _check_predictor(view: View, path: Path) -> None:
    check_path(view, path)
    text = view.text(*path)
    if text and not text.endswith(".py"):
        view.error(path, f"{shown(text)} is no Python file", "a file that ends with .py")


def _check_constraint(view: View, path: Path) -> None:
    text = view.text(*path)
    if text is None:
        return
    try:
        VersionConstraint.parse(text)
    except UsageError as error:
        view.error(path, error.message, "a range of versions", error.hint)


def _check_tensors(view: View, path: Path) -> None:
    """Several tensors need names, each its own; and look at their steps."""
    count = view.count(*path)
    first: dict[str, int] = {}
    for number in range(count):
        name = view.text(*path, number, "layer_name")
        if name is None and count > 1 and view.get(*path, number, "layer_name") is None:
            view.error(
                (*path, number),
                f"one of {count} {path[-1]} has no layer_name",
                "layer_name: its name in the model",
            )
        if name is not None and first.setdefault(name, number) != number:
            view.error((*path, number, "layer_name"), f"the layer {shown(name)} is listed twice")
        for step in range(view.count(*path, number, "steps")):
            _check_step(view, (*path, number, "steps", step))


def _check_step(view: View, path: Path) -> None:
    if {"rescale", "scale"} <= set(view.keys(*path, "normalize")):
        view.error_at_key(
            (*path, "normalize", "scale"), "scale and rescale mean the same", "keep one of them"
        )
    labels = (*path, "argsort", "labels_url")
    text = view.text(*labels)
    if not text:
        return
    if url_scheme(text) is None:
        check_path(view, labels)
    elif "..." in text or "…" in text:
        view.warning(
            labels,
            f"the address {shown(text)} is shortened",
            hint="write it out, or name a file beside the manifest",
        )
    else:
        _check_url(view, labels, text, None)


def _check_source(view: View, path: Path) -> None:
    base = (*path, "base_url")
    graph = (*path, "graph_path")
    is_folder = (view.text(*graph) or "").endswith("/")
    algorithm = check_checksum(view, (*path, "checksum"), required=None if is_folder else graph)
    if is_folder and algorithm is not None and view.get(*path, "is_archive") is not True:
        view.error_at_key(
            (*path, "checksum"),
            "a checksum is of one file, and the graph is a folder",
            "leave it out: packing records a sha256 of every file",
        )
    base_url = view.text(*base)
    if base_url:
        _check_url(view, base, base_url, algorithm)
    _check_asset(view, graph, algorithm, remote=bool(base_url), folder=True)
    weights = (*path, "weights_path")
    archive = view.get(*path, "is_archive") is True
    weights_algorithm = check_checksum(
        view, (*path, "weights_checksum"), required=None if archive else weights
    )
    # Weights inside an archive are covered by its checksum.
    _check_asset(view, weights, algorithm if archive else weights_algorithm, remote=bool(base_url))
    if (
        base_url
        and url_scheme(base_url) == "http"
        and view.text(*weights)
        and not archive
        and weights_algorithm != STRONG
    ):
        view.error(
            weights,
            "weights over plain http: need a sha256 checksum",
            "weights_checksum: sha256:<64 hex digits>",
        )
    if view.get(*path, "weights_checksum") is not None and view.get(*weights) is None:
        view.error_at_key((*path, "weights_checksum"), "there is a checksum of weights but no weights_path")


def _check_asset(
    view: View, path: Path, algorithm: str | None, *, remote: bool, folder: bool = False
) -> None:
    """A path relative to the manifest, or (when nothing else says where files are) a URL."""
    text = view.text(*path)
    if not text:
        return
    if url_scheme(text) in SCHEMES and not remote:
        _check_url(view, path, text, algorithm)
    else:
        check_path(view, path, folder=folder)


def _check_url(view: View, path: Path, text: str, algorithm: str | None) -> None:
    scheme = url_scheme(text)
    if scheme not in SCHEMES:
        what = f"the scheme {shown(scheme)} is not supported" if scheme else f"{shown(text)} is no URL"
        view.error(path, what, listing(f"{name}:" for name in SCHEMES), did_you_mean(scheme or "", SCHEMES))
    elif any(c.isspace() or not c.isprintable() for c in text):
        view.error(path, f"the URL {shown(text)} holds a space or a control character")
    elif scheme == "http" and algorithm != STRONG:
        view.error(
            path, "plain http: needs a sha256 checksum", "https:, or a checksum sha256:<64 hex digits>"
        )


def _check_variant_names(view: View) -> None:
    """Every form of the model needs a name of its own, by which a run picks it."""
    names = {str(view.text("framework", "name")).casefold()}
    for number in range(view.count("variants")):
        base = ("variants", number)
        own = view.text(*base, "name")
        path: Path = (*base, "name") if own is not None else (*base, "framework", "name")
        name = own if own is not None else view.text(*path)
        check_name(view, (*base, "name"))
        if name is None:
            continue
        if name.casefold() in names:
            view.error(
                path,
                f"the variant {shown(name)} is there already",
                "a name of its own for each variant",
                "without `name:` a variant is called like its framework",
            )
        names.add(name.casefold())


def _check_side(view: View, side: str, tensors: str) -> None:
    """Code excludes steps on its side, parses, and defines its function."""
    code = view.text(side)
    if not code:
        return
    bases: list[Path] = [(tensors,), *(("variants", n, tensors) for n in range(view.count("variants")))]
    if any(view.count(*base, n, "steps") for base in bases for n in range(view.count(*base))):
        view.error_at_key(
            (side,),
            f"there are both {side} code and steps in {tensors}",
            f"keep the code or the steps of {tensors}",
        )
    fault = code_fault(code, side)
    if fault is not None:
        hint = f"def {side}(env, data): ..." if fault.line == 0 else None
        view.error_in_code((side,), fault.message, (fault.line, fault.column), hint)


def _check_dataset(view: View) -> None:
    base: Path = ("dataset",)
    is_npz = view.get("dataset", "format") == "npz"
    algorithm = check_checksum(view, (*base, "checksum"), required=(*base, "path") if is_npz else None)
    _check_asset(view, (*base, "path"), algorithm, remote=False)
    check_path(view, (*base, "index"))
    if not is_npz:
        return
    layers = [view.text("inputs", number, "layer_name") for number in range(view.count("inputs"))]
    named = view.keys("dataset", "inputs")
    if len(layers) > 1 and view.get("dataset", "inputs") is None:
        view.error(
            base, "the dataset does not say which array feeds which input", "inputs: {layer_name: array}"
        )
    known = [layer for layer in layers if layer is not None]
    for layer in named:
        if known and layer not in known:
            path = (*base, "inputs", layer)
            view.error_at_key(path, f"the model has no input {shown(layer)}", did_you_mean(layer, known))
    for layer in known if named and len(layers) > 1 else []:
        if layer not in named:
            view.error((*base, "inputs"), f"no array feeds the input {shown(layer)}")
