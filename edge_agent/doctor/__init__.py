"""`edge-agent doctor`: the examination of this device, and of each trainer through its link, with remedies. Changes nothing.

`examine.py` has the order of the checks, `finding.py` their results; `command.py` shows them.
"""
