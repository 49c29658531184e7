"""Workers and services of this machine: started, probed, stopped."""
