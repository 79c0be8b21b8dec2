"""Follow upstream: find what is new, merge and judge every carry on it, build, report and propose."""
