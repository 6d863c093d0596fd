"""Training under any placement: this device and any number of trainers, as one session."""
