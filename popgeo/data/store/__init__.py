"""Flat stores on disk: folders that are written as a stream and mapped into memory."""
