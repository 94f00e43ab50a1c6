"""What each sub-command does, given its checked settings as a plain dict."""
