"""What several measurements need: processes, networks to train, and figures as people read them."""
