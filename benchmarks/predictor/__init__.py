"""What predictions of a device's times are worth, beside simpler estimates and the network of paper 001."""
