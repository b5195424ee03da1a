"""Starts the supervisor, or the measuring child of one pass: `--pass NAME FOLDERS SPAWNED_NS`.

FOLDERS is how many folders earlier passes have, SPAWNED_NS when on CLOCK_MONOTONIC the supervisor asked for the child.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--pass":
        from mlbundle.worker.child import main as child_main

        sys.exit(child_main(sys.argv[2], int(sys.argv[3])))
    from mlbundle.worker.supervisor import main

    sys.exit(main())
