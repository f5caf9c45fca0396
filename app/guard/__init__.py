"""The watchdog process and the app's link to it."""
