"""One module per subcommand of `autolabel`, imported only when it is called."""
