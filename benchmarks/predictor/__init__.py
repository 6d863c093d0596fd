"""Quality of predictions of a device's times, beside simpler estimates and the network of paper 001."""
