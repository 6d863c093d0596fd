"""Two trainings, each as a user of four systems writes it."""
