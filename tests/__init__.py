"""The tests of fedmon; they mirror its folders."""
