"""`edge-agent doctor`: looks at this device, and at the trainer through the link, and says what to fix. Changes nothing.

`examine.py` has the order of the checks, `finding.py` what one says; `command.py` shows them.
"""
