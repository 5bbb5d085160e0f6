//! The README's quick start, as a person would do it.
