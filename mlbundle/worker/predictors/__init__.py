"""Predictors: the framework behind three calls (Listing 3 of the MLModelScope paper).

    class Predictor:
        def open(self, model, options) -> handle
        def predict(self, handle, batch) -> outputs     # a list of arrays, valid until the next call
        def close(self, handle) -> None

and, where the framework can bind memory beforehand, `prepare(handle, feeds) -> batch`, called outside of the
timed region. `model` holds absolute paths (`graph`, `weights`); `options` holds `threads`. A handle has the names
`input_names` and `output_names`.
"""
