"""Scenarios: how load is put on the model.

    class Scenario:
        def __init__(self, options): ...
        def run(self, subject) -> ScenarioOutcome

`subject` is a `Subject`: prepared batches, the call to measure, and ways to report.
"""
