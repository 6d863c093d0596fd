"""A group of devices that trains one model: what the exchange of its parameters costs."""
