"""A plan as a job: files that a scheduler or a training program reads."""
