"""Serve a recipe: preflight, environment, start, warm-up, status, and a clean stop."""
