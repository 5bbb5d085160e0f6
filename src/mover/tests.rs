//! The protocol's tables and counterexamples, step by step.
