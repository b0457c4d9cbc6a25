"""What is measured beyond a run: converged models, visitation, theory, speed, videos."""
