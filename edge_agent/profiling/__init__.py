"""The offline profile: what each cut costs on this pair of devices, and what compression the model bears."""
