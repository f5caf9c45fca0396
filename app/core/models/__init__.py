"""What is on disk and what it costs: headers, memory plans, presets, catalogue, downloads."""
