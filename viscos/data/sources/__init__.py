"""Where data come from: public sets, files, folders and tables of the user's, and toys; by name in `registry`."""
