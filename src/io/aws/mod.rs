//! What Amazon's services have in common.

pub mod credentials;
