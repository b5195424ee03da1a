"""Pre- and post-processing: operators by name, custom code, and the streaming executor that joins them.

An operator is a class built once from its parameters and called once for each value:

    class Operator:
        def __init__(self, params, context): ...
        def __call__(self, value): ...

`context` is a `Context`. Operators may be called from one thread at a time; several operators run in
several threads, so that reading, decoding and inference overlap.
"""
