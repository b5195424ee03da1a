"""A predictor that answers token by token: it writes the next characters of a text, as often as it has seen them.

The model is a table: after these three characters, this one came most often. `generate` gives a sign for every
character; `predict` is the same answer at once.
"""

import numpy as np

LONGEST = 32
END = 0  # what fills an answer up


class Handle:
    """An open model: three characters -> the one that follows."""

    input_names = ("prompt",)
    output_names = ("text",)

    def __init__(self, table, order):
        self.table = table
        self.order = order
        self.facts = {"version": "1.0.0", "device": "cpu", "contexts": len(table)}


class Predictor:
    """Continues texts of bytes to the end of the line, at most LONGEST characters."""

    def open(self, model, options):
        """Read the table: rows of `order` characters and the one that follows."""
        rows = np.load(model["graph"], allow_pickle=False)
        table = {tuple(row[:-1]): row[-1] for row in rows.tolist()}
        return Handle(table, rows.shape[1] - 1)

    def generate(self, handle, batch):
        """Write one answer, character by character: a `yield` for each, and in the end what `predict` returns."""
        (prompt,) = batch["prompt"].tolist()
        written = []
        while len(written) < LONGEST:
            context = tuple((prompt + written)[-handle.order :])
            written.append(handle.table.get(context, ord("\n")))
            yield
            if written[-1] == ord("\n"):
                break
        return [np.array([written + [END] * (LONGEST - len(written))], np.int64)]

    def predict(self, handle, batch):
        """Return the answers to a batch, one after another: [N, LONGEST] character codes."""
        return [np.concatenate([self._whole(handle, prompt) for prompt in batch["prompt"]])]

    def _whole(self, handle, prompt):
        steps = self.generate(handle, {"prompt": prompt[None]})
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                return ended.value[0]

    def close(self, handle):
        """There is nothing to release."""
