"""The agent's sessions: opened or resumed with the trainer, called, and kept on this device."""
