"""Reads spans of OpenTelemetry: `ExportTraceServiceRequest` as JSON, one document or one a line (collectors write so).

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlbundle.errors import IntegrityError
from mlbundle.trace.foreign import MAX_ARGS, ForeignSlice, ForeignTrace, short

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = "otlp"
_SERVICE = "service.name"
_STATUS_ERROR = (2, "STATUS_CODE_ERROR")


def looks_like_otlp(text: str) -> bool:
    """Return whether a text may be such an export."""
    return '"resourceSpans"' in text


def read_otlp(text: str, *, where: str) -> ForeignTrace:
    """Return the spans; each knows its parent where that came before it in time.

    Raises IntegrityError when no line of the text is such a document.
    """
    trace, found = ForeignTrace(KIND), []
    for document in _documents(text, trace, where):
        for service, scope, span in _spans(document):
            one = _slice(service, scope, span)
            if one is None or not one.is_sound():
                trace.skipped += 1
            else:
                found.append((one, _identity(span, "spanId"), _identity(span, "parentSpanId")))
    # Parents first: a slice is nested in one that is there already.
    found.sort(key=lambda entry: (entry[0].start_ns, -entry[0].end_ns))
    rows: dict[tuple[str, str], int] = {}
    leads_to: dict[int, list[int]] = {}
    for one, own, parent in found:
        row = rows.get(parent, -1)
        if own[1]:
            rows[own] = len(trace.slices)
        trace.add(_tied(one, row, trace, leads_to))
    for row, flows in leads_to.items():
        trace.slices[row] = replace(trace.slices[row], flows=tuple(flows))
    return trace


def _documents(text: str, trace: ForeignTrace, where: str) -> Iterator[dict[str, Any]]:
    """Yield the documents of a text: the whole of it, else those of its lines."""
    try:
        documents = [json.loads(text)]
    except (ValueError, RecursionError):
        documents = []
        # JSON texts may hold what Python takes for the end of a line (U+2028, U+0085).
        for line in text.split("\n"):
            try:
                documents.append(json.loads(line))
            except (ValueError, RecursionError):
                trace.skipped += bool(line.strip())
    known = [one for one in documents if isinstance(one, dict) and isinstance(one.get("resourceSpans"), list)]
    if not known:
        raise IntegrityError("the file has no spans of OpenTelemetry", where=where)
    yield from known


def _spans(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (name of the service, name of the scope, span)."""
    for resource in _dicts(document.get("resourceSpans")):
        described = resource.get("resource")
        attributes = _attributes(described.get("attributes") if isinstance(described, dict) else None)
        service = short(attributes.get(_SERVICE, "service"))
        for scope in _dicts(resource.get("scopeSpans")):
            named = scope.get("scope")
            name = short(named.get("name", "")) if isinstance(named, dict) else ""
            for span in _dicts(scope.get("spans")):
                yield service, name, span


def _slice(service: str, scope: str, span: dict[str, Any]) -> ForeignSlice | None:
    start_ns, end_ns = _ns(span.get("startTimeUnixNano")), _ns(span.get("endTimeUnixNano"))
    if start_ns is None or end_ns is None:
        return None
    args = _attributes(span.get("attributes"))
    args |= {name: short(span[name]) for name in ("traceId", "spanId") if span.get(name)}
    status = span.get("status")
    if isinstance(status, dict) and status.get("code") in _STATUS_ERROR:
        args["error"] = short(status.get("message") or True)
    return ForeignSlice(
        service, scope or "spans", short(span.get("name", "")), start_ns, end_ns, "span", args
    )


def _tied(one: ForeignSlice, row: int, trace: ForeignTrace, leads_to: dict[int, list[int]]) -> ForeignSlice:
    """Return a span with its parent: by nesting where they share a track, else by a flow that ends in it.

    `leads_to`: row of a parent -> flows that begin there.
    """
    if row < 0:
        return one
    parent = trace.slices[row]
    flow = len(trace.slices)
    is_here = (parent.process, parent.track) == (one.process, one.track)
    if not is_here:
        leads_to.setdefault(row, []).append(flow)
        return replace(one, ends_flows=(flow,))
    return replace(one, parent=row)


def _identity(span: dict[str, Any], name: str) -> tuple[str, str]:
    return str(span.get("traceId", "")), str(span.get(name) or "")


def _ns(value: object) -> int | None:
    """Return a time: 64-bit numbers are texts in JSON; some write them as numbers."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None


def _attributes(given: object) -> dict[str, str | int | float | bool]:
    """Return attributes by name: `[{"key": …, "value": {"intValue": "3"}}]`."""
    found: dict[str, str | int | float | bool] = {}
    for attribute in _dicts(given)[:MAX_ARGS]:
        value = attribute.get("value")
        if isinstance(value, dict) and value:
            kind, content = next(iter(value.items()))
            number = _integer(content) if kind == "intValue" else None
            plain = isinstance(content, bool | float)
            found[short(attribute.get("key", ""))] = (
                number if number is not None else content if plain else short(content)
            )
    return found


def _integer(value: object) -> int | None:
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if abs(number) < 1 << 63 else None


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
