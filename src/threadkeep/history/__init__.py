"""What was said: sessions and their keys, the windows over them, and the turns that wait to be written."""
