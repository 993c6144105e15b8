"""The way back: launch scripts, command lines and directories as the problems and plans that they are."""
