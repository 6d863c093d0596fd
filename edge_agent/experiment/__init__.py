"""What a configuration means before any trainer is asked: data, model, recipe, first deployment."""
