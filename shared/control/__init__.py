"""What the control services of both sides stand on: where they listen, how they answer, and how the commands call them."""
