//! Tests of the binary and of what needs it.

mod templates;
