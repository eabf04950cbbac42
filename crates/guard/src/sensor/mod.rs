//! What is measured: files read again and again, and pure parsers of what they hold.
