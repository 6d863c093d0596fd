"""Choosing the deployment while training goes on: what is measured, what the engine plans with, what it decides."""
