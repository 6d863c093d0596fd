"""What both command lines share: how they end, their common options, and what they tell systemd."""
