"""Executor processes: started, watched, ended, and who ended them."""
