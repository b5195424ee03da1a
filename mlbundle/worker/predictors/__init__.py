"""Predictors: the framework behind three calls (Listing 3 of the MLModelScope paper).

    class Predictor:
        def open(self, model, options) -> handle
        def predict(self, handle, batch) -> outputs     # a list of arrays, valid until the next call
        def close(self, handle) -> None

and, where the framework can bind memory beforehand, `prepare(handle, feeds) -> batch`, called outside of the
timed region; `feeds` maps a layer name to an array whose first axis is the batch. Without `prepare`, `predict` gets
`feeds` itself. Threads are the worker's affair: `predict` may be called from another one than `open`.

`model` holds absolute paths: `graph`, and `weights` where the manifest names them. `options` holds `threads` (what
the framework may use for one operator; between operators it is one, everywhere), `accelerator` (`cpu` or `gpu`; a
predictor that does not find what is asked for fails), `trace_level`, `scratch` (a folder that may be written), and
`inputs` and `outputs` as the manifest lists them (`layer_name`, `element_type`, `shape`).

A handle may have `input_names` and `output_names` (empty or absent where the framework has none: then inputs and
outputs are taken in the order of the manifest, and an only input without a layer name is called `input`), and `facts`,
a dictionary of JSON values that goes into the record: `device`, `threads` as the framework took them, whatever else
explains a number.

A model that generates may have `generate(handle, batch)`: an iterator over a batch of one sample that gives something
(what, does not matter) whenever a token is there, and ends with `return outputs`. Where it is there, `online`,
`poisson` and LoadGen's scenarios ask for answers so, and measure tokens; `predict` must give the same answer at once.

The first batch of a pass is run once where nothing is timed, and its answer held against the manifest (`answer.py`).
"""
