// Runs the trace_processor.wasm of a Perfetto UI build under node, without a browser.
// Argument: the folder of the build. stdin and stdout: TraceProcessorRpcStream bytes, cut anywhere, as with
// `trace_processor_shell --stdiod`. Ends with stdin.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const START_LIMIT_MS = 60000;
const folder = process.argv[2];
const local = (url) => path.join(folder, path.basename(String(url)));
const bytesOf = (url) => {
  const file = fs.readFileSync(local(url));
  return file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength);
};
const complain = (...words) => process.stderr.write(words.join(" ") + "\n");

// What the engine finds in a browser's worker.
class FileRequest {
  open(_method, url) { this.url = url; }
  send() { this.response = bytesOf(this.url); }
}
const worker = { location: { href: "file://" + folder + "/engine_bundle.js" } };
const scope = {
  self: worker, location: worker.location, document: undefined, WorkerGlobalScope: function () {},
  WebAssembly, URL, TextDecoder, TextEncoder, performance, setTimeout, clearTimeout, crypto: globalThis.crypto,
  Uint8Array, Int8Array, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array, Float64Array,
  BigInt64Array, BigUint64Array, ArrayBuffer, DataView, Promise, BigInt, Date, Math, Error, TypeError, RangeError,
  Object, Function, Array, Symbol, XMLHttpRequest: FileRequest, importScripts() {},
  console: { log() {}, warn: complain, error: complain },
  fetch: async (url) => ({
    ok: true, status: 200, url: String(url), headers: { get: () => "application/wasm" },
    arrayBuffer: async () => bytesOf(url),
  }),
};
scope.globalThis = scope;
vm.createContext(scope);
vm.runInContext(fs.readFileSync(local("engine_bundle.js"), "utf8"), scope, { filename: "engine_bundle.js" });

let handler = null;
const port = {
  set onmessage(value) { handler = value; },
  get onmessage() { return handler; },
  postMessage(data) { process.stdout.write(Buffer.from(data.buffer ? data : new Uint8Array(data))); },
};
worker.onmessage({ data: port, ports: [port] });

// The engine compiles its module in the background and throws a TypeError on what arrives before that is done, having
// touched nothing: the first request is offered until it is taken.
const requests = [];
const begun = Date.now();
let ready = false, waiting = false, ended = false;
function pump() {
  while (requests.length) {
    try {
      handler({ data: requests[0] });
    } catch (error) {
      if (ready || !(error instanceof TypeError || error.name === "TypeError") || Date.now() - begun > START_LIMIT_MS) {
        complain(error.stack || String(error));
        process.exit(1);
      }
      if (!waiting) {
        waiting = true;
        setTimeout(() => { waiting = false; pump(); }, 5);
      }
      return;
    }
    ready = true;
    requests.shift();
  }
  if (ended) process.stdout.write("", () => process.exit(0));
}

process.stdin.on("data", (chunk) => {
  requests.push(new Uint8Array(chunk));
  pump();
});
process.stdin.on("end", () => { ended = true; pump(); });
