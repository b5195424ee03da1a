"""What host and worker say to each other: frames, the job, events, clocks.

Standard library only, Python 3.9, and no import of any other part of mlbundle: the same files run on the host
and inside the framework image.
"""
