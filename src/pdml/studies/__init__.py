"""What is measured beyond a run: converged models, critics, visitation, theory, speed, videos."""
