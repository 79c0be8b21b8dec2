"""What every package stands on: errors, events, configuration, digests, and starting programs."""
