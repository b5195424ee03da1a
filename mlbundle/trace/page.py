"""The page on this machine that hands a trace to Perfetto, and links into Perfetto's UI.

The UI takes a trace by `postMessage` from the window that opened it: it answers `PING` with `PONG` once it listens
(https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui). Nothing is uploaded: the bytes go from one
window of the browser to the other.
"""

from __future__ import annotations

import html
import json
from urllib.parse import quote

PUBLIC_UI = "https://ui.perfetto.dev"
# Groups open collapsed: all that the trace has is shown.
_STARTUP = ({"id": "dev.perfetto.ExpandTracksByRegex", "args": ["."]},)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 4rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; }
button { font: inherit; padding: .5rem 1rem; }
"""

_HAND_OVER = """
"use strict";
const offer = JSON.parse(document.getElementById("offer").textContent);
const state = document.getElementById("state");
const button = document.getElementById("open");
const PING_MS = 50, PATIENCE_MS = 120000;
const origin = new URL(offer.ui).origin;
const fetched = fetch(offer.trace).then((answer) => {
  if (!answer.ok) throw new Error("the trace can't be fetched: " + answer.status);
  return answer.arrayBuffer();
});
const say = (text) => { state.textContent = text; };

async function handOver(ui) {
  const buffer = (await fetched).slice(0);
  const begun = Date.now();
  await new Promise((resolve, reject) => {
    const listen = (event) => {
      if (event.source !== ui || event.origin !== origin || event.data !== "PONG") return;
      finish(resolve);
    };
    const timer = setInterval(() => {
      if (ui.closed) finish(reject, new Error("the window of Perfetto was closed"));
      else if (Date.now() - begun > PATIENCE_MS) finish(reject, new Error(origin + " does not answer"));
      else ui.postMessage("PING", origin);
    }, PING_MS);
    const finish = (end, value) => {
      clearInterval(timer);
      window.removeEventListener("message", listen);
      end(value);
    };
    window.addEventListener("message", listen);
  });
  const perfetto = { buffer, title: offer.title, fileName: offer.file, localOnly: true };
  ui.postMessage({ perfetto }, origin, [buffer]);
  await fetch("taken", { method: "POST" });
}

async function openUi() {
  const ui = window.open(offer.ui);
  button.hidden = false;
  if (!ui) { say("Press the button: this browser opens no window before one has touched the page."); return; }
  say("Waiting for Perfetto to start.");
  try {
    await handOver(ui);
    say("Perfetto has the trace. This page can be closed.");
    button.hidden = true;
  } catch (error) {
    say("Perfetto did not take the trace: " + error.message + ".");
  }
}

button.addEventListener("click", openUi);
openUi();
"""

_REDIRECT = """
"use strict";
const offer = JSON.parse(document.getElementById("offer").textContent);
const trace = new URL(offer.trace, location.href).href;
location.replace("ui/#!/?url=" + encodeURIComponent(trace) + "&startupCommands=" + offer.startup);
"""

_DOCUMENT = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><link rel="icon" href="data:,">
<style nonce="{nonce}">{style}</style></head>
<body>
<h1>{title}</h1>
<p id="state">Reading the trace.</p>
<button id="open" hidden>Open in Perfetto</button>
<noscript><p>This page needs JavaScript.</p></noscript>
<script type="application/json" id="offer" nonce="{nonce}">{offer}</script>
<script nonce="{nonce}">{script}</script>
</body>
</html>
"""


def hand_over_page(*, title: str, file_name: str, ui: str, nonce: str) -> bytes:
    """Return the page that opens the UI at `ui` and gives it the trace `file_name` that lies beside the page."""
    link = f"{ui}/#!/?startupCommands={_startup()}"
    offer = {"title": title, "file": file_name, "trace": quote(file_name), "ui": link}
    return _page(title, offer, _HAND_OVER, nonce)


def redirect_page(*, title: str, file_name: str, nonce: str) -> bytes:
    """Return the page that leads to the UI in the folder `ui` beside it, which then fetches the trace."""
    return _page(title, {"trace": quote(file_name), "startup": _startup()}, _REDIRECT, nonce)


def url_link(ui: str, trace_url: str) -> str:
    """Return the link that makes the UI fetch a trace by itself."""
    return f"{ui}/#!/?url={quote(trace_url, safe='')}&startupCommands={_startup()}"


# For the packaged UI. The script in its page may run, and it may reach nothing but its own files: it would ask hosts of
# its makers otherwise.
UI_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; connect-src 'self' blob: data:; img-src 'self' blob: data:; "
    "worker-src 'self' blob:; frame-ancestors 'none'"
)


def policy(nonce: str) -> str:
    """Return the content security policy of our pages: their own script, and what lies beside them."""
    own = f"'nonce-{nonce}'"
    return (
        f"default-src 'none'; script-src {own}; style-src {own}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _page(title: str, offer: dict[str, str], script: str, nonce: str) -> bytes:
    # Inside of a script element nothing is unescaped, but `</script` would end it.
    safe = json.dumps(offer).replace("<", "\\u003c")
    shown = html.escape(title)
    return _DOCUMENT.format(title=shown, nonce=nonce, style=_STYLE, offer=safe, script=script).encode(
        "utf-8", "replace"
    )


def _startup() -> str:
    return quote(json.dumps(_STARTUP), safe="")
