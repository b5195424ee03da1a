"""Write table.npy and dataset.npz: which character follows which three in text.txt, and the beginnings of its lines.

python train.py      needs NumPy
"""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ORDER = 3
PROMPT = 6


def main() -> None:
    """Count, write both files, say how often the table is right about a character that it has seen."""
    text = HERE.joinpath("text.txt").read_bytes()
    seen: dict[bytes, Counter[int]] = defaultdict(Counter)
    for place in range(len(text) - ORDER):
        seen[text[place : place + ORDER]][text[place + ORDER]] += 1
    # Of characters that came as often, the first in the alphabet: the table is the same each time.
    table = {context: min(after, key=lambda c: (-after[c], c)) for context, after in sorted(seen.items())}
    np.save(HERE / "table.npy", np.array([[*context, after] for context, after in table.items()], np.uint8))
    lines = [line for line in text.splitlines() if len(line) > PROMPT]
    prompts = np.array([list(line[:PROMPT]) for line in lines], np.uint8)
    following = np.array([line[PROMPT] for line in lines], np.int64)
    right = sum(table[line[PROMPT - ORDER : PROMPT]] == line[PROMPT] for line in lines)
    print(f"the next character is right for {right} of {len(lines)} lines: {right / len(lines):.6f}")
    np.savez_compressed(HERE / "dataset.npz", prompts=prompts, following=following)


if __name__ == "__main__":
    main()
