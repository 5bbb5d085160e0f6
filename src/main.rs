//! The `geofold` command: parses arguments and calls the library; nothing else.

fn main() {}
