//! Membership: which workers there are.
