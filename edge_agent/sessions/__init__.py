"""The agent's sessions: opened or resumed with the trainer, called, and stored on this device."""
