"""`edge-agent doctor`: looks at this device, and at each trainer through its link, and says what to fix. Changes nothing.

`examine.py` has the order of the checks, `finding.py` what one says; `command.py` shows them.
"""
