"""The experiment that a configuration describes, before any trainer is asked: data, model, recipe, first deployment."""
